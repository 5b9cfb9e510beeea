"""Exports that are damaged, odd or dangerous: read right, or refused with a clear error, and never written to."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import polars as pl
import pytest

from tests.loaders.exports import Row, call, copy, domain, export, gpu, kernel, nvtx, tid
from tests.simulator import Run, nsight, work
from trace_doctor import Trace, analyze, load
from trace_doctor.errors import CorruptTraceError, InputError, TraceDoctorError
from trace_doctor.loaders.nsight import database
from trace_doctor.report import to_json
from trace_doctor.reporter import markdown, terminal

GEMM = "ampere_sgemm_128x64_tn"
BIG = (1 << 53) + 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


def simple(path: Path) -> Path:
    return export(path, kernel(30, 40, GEMM, 7), call(10, 20, 7), nvtx(5, 50, "iteration 1"))


def simulated(path: Path, **how: object) -> Path:
    run = Run(rank=0, world_size=8)
    for _ in range(2):
        with run.step():
            run.do(work.mm(512, 512, 512))
            run.collective(work.collective("allreduce", 1_000_000, duration_ns=90_000))
            run.item()
    return nsight.write(path, run, **how)  # type: ignore[arg-type]


def codes(trace: Trace) -> list[str]:
    return [warning.code for warning in trace.meta.warnings]


# ---- odd, but read right


def test_a_kernel_whose_name_is_not_in_the_file_is_accounted_for(path: Path) -> None:
    report = analyze([export(path, kernel(30, 10_030, 999_999, 7, shortName=None), call(10, 20, 7))])  # type: ignore[arg-type]
    assert [(row.cause, row.time_ns) for row in report.ledger] == [("unknown kernel", 10_000)]
    assert report.kernels.rows[0].name == "unnamed kernel"


def test_a_kernel_without_end_is_set_aside_and_counted(path: Path) -> None:
    trace = load(export(path, kernel(30, None, GEMM, 7), kernel(50, 60, GEMM, 8)))
    assert trace.activities["start_ns"].to_list() == [50]
    assert codes(trace) == ["impossible_timestamps"]


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_parts_of_a_table_are_as_good_as_the_whole(path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Columns that hold one value in a part, in all parts, or all but the last row of one."""
    streams, graphs = [7, 7, 7, 9, 9, None], [None, None, 5, 5, 5, 5]
    records = [
        Row("T", {"streamId": stream, "graphId": number, "name": name, "same": "odd"})
        for stream, number, name in zip(streams, graphs, ["", None, "", "a", "", None], strict=True)
    ]
    file = export(path, kernel(30, 40, GEMM, 7), records)
    monkeypatch.setattr(database, "PART_ROWS", rows)
    parts = list(database.open_(file).fetch("T", ["streamId", "graphId", "same"], ["name"]))
    assert [len(part) for part in parts] == [rows] * (6 // rows) + [6 % rows]
    whole = pl.concat(parts)
    assert whole.to_dict(as_series=False) == {
        "streamId": streams,
        "graphId": graphs,
        "same": [0] * 6,
        "name": [None, None, None, "a", None, None],
    }


def test_times_before_zero_are_times(path: Path) -> None:
    trace = load(export(path, kernel(-30, -10, GEMM, 7), kernel(50, 60, GEMM, 8), nvtx(-90, -5, "phase 1")))
    assert trace.activities["start_ns"].to_list() == [-30, 50]
    assert trace.annotations.select("start_ns", "duration_ns").rows() == [(-90, 85)]


def test_a_table_without_processes_is_of_the_one_that_the_others_name(path: Path) -> None:
    lost = copy(50, 60, 8, globalPid=None)
    report = analyze([export(path, kernel(30, 40, GEMM, 7), call(10, 20, 7), lost, call(21, 22, 8), gpu())])
    assert [(one.process, one.counts.copies, one.counts.launches) for one in report.gpus] == [("4242", 1, 1)]
    (alone,) = analyze([export(path, kernel(30, 40, GEMM, 7, globalPid=None))]).gpus
    assert alone.process == "0"


@pytest.mark.parametrize("number", [1 << 70, -1, "8", 1.5])
def test_numbers_of_nccl_that_are_none_are_unknown(path: Path, number: object) -> None:
    payload = json.dumps(
        {"NCCL communicator ID": 1, "Message size [bytes]": number, "No. of ranks": number, "Rank": number}
    )
    text = [domain(1, "NCCL"), nvtx(9, 25, None, textId="ncclAllReduce", domainId=1, jsonText=payload)]
    trace = load(export(path, kernel(30, 40, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 7), call(10, 20, 7), text))
    assert (trace.meta.world_size, trace.meta.rank) == (None, None)
    assert trace.collectives["in_elements"].to_list() == [None]


def test_rows_come_in_any_order(path: Path) -> None:
    trace = load(
        export(
            path, [kernel(at, at + 5, GEMM, at) for at in (50, 10, 30)], [call(at, at + 1, at) for at in (30, 10, 50)]
        )
    )
    assert trace.activities["start_ns"].to_list() == [10, 30, 50]
    assert trace.calls["start_ns"].gather(trace.activities["call"]).to_list() == [10, 30, 50]


def test_ids_beyond_what_a_float_holds_stay_exact(path: Path) -> None:
    rows = [(kernel(30 + n, 40 + n, GEMM, BIG + n), call(10 + n, 20 + n, BIG + n)) for n in (0, 1)]
    trace = load(export(path, *[row for pair in rows for row in pair]))
    assert trace.activities["call"].to_list() == [0, 1]
    assert trace.activities["correlation"].to_list() == [BIG, BIG + 1]


def test_a_hardware_id_may_make_ids_negative(path: Path) -> None:
    hardware = -(1 << 63)
    process = {"globalPid": hardware | tid(0)}
    trace = load(export(path, kernel(30, 40, GEMM, 7, **process), call(10, 20, 7, globalTid=hardware | tid())))
    assert trace.meta.processes == ("4242",)
    assert trace.activities["call"].to_list() == [0]


def test_repeated_rows_count_once(path: Path) -> None:
    trace = load(export(path, [kernel(30, 40, GEMM, 7)] * 2, [call(10, 20, 7)] * 2))
    assert len(trace.activities) == len(trace.calls) == 1
    assert codes(trace) == ["repeated_records"]


def test_text_that_is_no_utf8_is_read(path: Path) -> None:
    simple(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE StringIds SET value = CAST(x'67ff6d' AS TEXT) WHERE value = ?", [GEMM])
        connection.execute("UPDATE NVTX_EVENTS SET text = CAST(x'ff31' AS TEXT)")
    connection.close()
    trace = load(path)
    assert trace.activities["name"].to_list() == ["g\ufffdm"]
    assert trace.annotations["name"].to_list() == ["\ufffd1"]


def test_values_of_another_type_are_not_believed(path: Path) -> None:
    odd = {"gridX": "many", "streamId": 7.0, "shortName": b"\xff"}
    trace = load(export(path, kernel(30, 40, GEMM, 7, **odd), kernel(50, 60, GEMM, "eight")))
    assert trace.activities["grid"].to_list() == ["[0, 1, 1]", "[18, 1, 1]"]
    assert trace.activities["stream"].to_list() == [7, 7]


def test_times_at_the_end_of_all_numbers_are_no_times(path: Path) -> None:
    last = (1 << 63) - 1
    trace = load(export(path, kernel(30, 40, GEMM, 7), call(10, 20, 7), call(last, last, 8), call(-last, last, 9)))
    assert trace.calls["start_ns"].to_list() == [10]


def test_a_table_larger_than_a_part_is_read_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PART_ROWS", 3)
    for count in (2, 3, 7):
        # the first part holds no number at all
        rows = [kernel(10 * n, 10 * n + 5, GEMM, n if n > 3 else None) for n in range(1, count + 1)]
        trace = load(export(path, rows))
        assert trace.activities["start_ns"].to_list() == [10 * n for n in range(1, count + 1)]
        assert trace.activities["correlation"].to_list() == [n if n > 3 else None for n in range(1, count + 1)]


def test_columns_that_tools_add_are_ignored(path: Path) -> None:
    trace = load(export(path, kernel(30, 40, GEMM, 7, EXTRAP_x=1), call(10, 20, 7, EXTRAP_y="z")))
    assert trace.activities["name"].to_list() == [GEMM]


def test_names_that_lead_nowhere_are_unknown(path: Path) -> None:
    trace = load(export(path, kernel(30, 40, 999_999, 7), nvtx(1, 2, None, textId=999_998)))  # type: ignore[arg-type]
    assert trace.activities["name"].to_list() == ["unnamed kernel"]
    assert len(trace.annotations) == 0
    assert analyze([path]).partition.compute_ns == 10


# ---- not to be read


def test_a_pointer_is_not_the_file(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 2203648\n")
    with pytest.raises(InputError, match="LFS"):
        load(path)


def test_an_interrupted_export_has_an_empty_header(path: Path) -> None:
    simple(path)
    path.write_bytes(b"\0" * 4096 + path.read_bytes()[4096:])
    with pytest.raises(CorruptTraceError, match="header is empty") as caught:
        load(path)
    assert "nsys export" in str(caught.value.hint)


def test_a_truncated_database_says_how_much_is_there(path: Path) -> None:
    whole = simple(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptTraceError, match=f"truncated: {len(whole) // 2} of {len(whole)} bytes"):
        load(path)


def test_other_bytes_with_that_name_are_refused(path: Path) -> None:
    path.write_bytes(b"hello, world")
    with pytest.raises(InputError, match="not a SQLite database"):
        load(path)


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_database_that_is_being_written_is_refused(path: Path, mode: str) -> None:
    simple(path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute(f"PRAGMA journal_mode = {mode}")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("CREATE TABLE more (a)")
    if mode == "WAL":
        writer.execute("COMMIT")
    try:
        with pytest.raises(InputError, match="locked"):
            load(path)
    finally:
        writer.close()


def test_a_database_of_something_else_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    with pytest.raises(InputError, match="no export of Nsight Systems"):
        load(path)


def test_damage_anywhere_is_an_error_or_a_report_and_nothing_else(path: Path) -> None:
    whole, order = simulated(path).read_bytes(), Random(7)
    outcomes = set()
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(order.choice([1, 20, 400])):
            damaged[order.randrange(len(whole))] = order.randrange(256)
        path.write_bytes(damaged)
        try:
            analyze([path])
            outcomes.add("report")
        except TraceDoctorError:
            outcomes.add("error")
    assert outcomes == {"report", "error"}


# ---- the user's file, and the user's secrets


def test_nothing_is_written_to_the_file_or_beside_it(path: Path) -> None:
    simulated(path)
    before = hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns, sorted(path.parent.iterdir())
    analyze([path])
    assert (
        hashlib.sha256(path.read_bytes()).digest(),
        path.stat().st_mtime_ns,
        sorted(path.parent.iterdir()),
    ) == before


def test_a_file_that_nobody_may_write_is_read(path: Path) -> None:
    simulated(path).chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert analyze([path]).counts.kernels == 4
    finally:
        path.parent.chmod(0o755)


@pytest.mark.parametrize("schema", nsight.SCHEMAS)
def test_no_secret_of_the_environment_gets_into_a_report(
    path: Path, schema: str, capfd: pytest.CaptureFixture[str]
) -> None:
    simulated(path, schema=schema)
    assert nsight.SECRET.encode() in path.read_bytes()
    report = analyze([path])
    written = [to_json(report).decode(), markdown.render(report), terminal.render(report), repr(load(path).meta)]
    assert not [text for text in [*written, *capfd.readouterr()] if nsight.SECRET in text]


@pytest.mark.parametrize(
    "spoil",
    [
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = NULL",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO began",
    ],
)
def test_no_secret_of_the_environment_gets_into_an_error(path: Path, spoil: str) -> None:
    simulated(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY")
        connection.execute(spoil)
    connection.close()
    with pytest.raises(TraceDoctorError) as caught:
        analyze([path])
    assert nsight.SECRET not in str(caught.value)


def test_tables_that_hold_the_environment_are_never_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    connected = database._connected

    @contextmanager
    def overheard(file: Path) -> Iterator[database.Query]:
        with connected(file) as query:
            yield lambda sql: (asked.append(sql), query(sql))[1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(database, "_connected", overheard)
    load(simulated(path))
    assert asked
    assert not [query for query in asked if "SYSTEM_ENV" in query or "META_DATA_CAPTURE" in query]


def test_diagnostics_are_repeated_in_our_words_only(path: Path) -> None:
    said = {"timestamp": 0, "severity": 2, "globalPid": tid(0)}
    trace = load(
        export(
            path,
            kernel(30, 40, GEMM, 7),
            Row("DIAGNOSTIC_EVENT", {**said, "text": "Not all CUDA events might have been collected. token=abc"}),
            Row("DIAGNOSTIC_EVENT", {**said, "text": "token=abc"}),
        )
    )
    assert [warning.message for warning in trace.meta.warnings] == ["not all CUDA events were collected (1 x)"]
