"""pandas and HTA on traces whose numbers are known by construction. Skips where the extras are not installed."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.build import Row, kernel, launched, mark, op, step, trace
from tests.simulator import MS, Run, kineto, ledger, work
from tests.simulator.machine import Ran
from tests.simulator.samples import SAMPLES
from trace_doctor import analyze
from trace_doctor.errors import UsageError
from trace_doctor.interop import crosscheck_hta, holistic, to_hta, to_pandas
from trace_doctor.loaders.linking import link
from trace_doctor.loaders.source import load
from trace_doctor.report import Evidence, Finding, Fix, LedgerRow, Report, Top
from trace_doctor.trace import SCHEMAS, Trace

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
pytest.importorskip("hta")

# what HTA 0.5.0 does, not we
pytestmark = [
    pytest.mark.filterwarnings("ignore:Downcasting behavior in `replace`:FutureWarning:hta"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in scalar divide:RuntimeWarning:hta"),
]


# ---- pandas


def test_frames_of_a_trace_keep_their_nanoseconds() -> None:
    late = 1_790_857_026_000_000_001  # a float64 would round it
    frames = to_pandas(
        trace(kernel(late, 7, "gemm", bytes=None), kernel(late + 9, 3, "Memcpy", bytes=12), op(late - 5, 4))
    )
    assert list(frames) == list(SCHEMAS)
    activities = frames["activities"]
    assert activities["start_ns"].tolist() == [late, late + 9]
    assert str(activities["bytes"].dtype) == "Int64"
    assert activities["bytes"].isna().tolist() == [True, False]
    assert activities["bytes"][1] == 12
    assert activities["name"].tolist() == ["gemm", "Memcpy"]
    assert str(activities["name"].dtype) == "category"
    assert frames["ops"]["start_ns"].tolist() == [late - 5]
    assert list(frames["metrics"].columns) == list(SCHEMAS["metrics"])


def test_tables_of_a_report_nest_by_row() -> None:
    rows = [
        LedgerRow(wall="mfu", cause="model FLOPs", time_ns=60, share=0.6, mfu_points=60.0, basis="modelled"),
        LedgerRow(
            wall="host",
            cause="input pipeline",
            time_ns=40,
            share=0.4,
            mfu_points=40.0,
            basis="measured",
            top=[Top(name="__next__", time_ns=30, count=2), Top(name="fetch", op="aten::to", time_ns=10, count=1)],
        ),
    ]
    found = Finding(
        code="INPUT",
        title="late",
        wall="host",
        cause="input pipeline",
        severity="error",
        confidence="high",
        lost_ns=40,
        mfu_points=40.0,
        evidence=[Evidence(kind="gap", name="__next__", duration_ns=30, numbers={"share": 0.4})],
        fix=Fix(summary="more workers", code="num_workers=4"),
    )
    tables = to_pandas(Report(ledger=rows, findings=[found]))
    assert tables["ledger"]["time_ns"].tolist() == [60, 40]
    assert tables["ledger"]["cause"].tolist() == ["model FLOPs", "input pipeline"]
    assert tables["ledger_top"]["row"].tolist() == [1, 1]
    assert tables["ledger_top"]["op"].tolist() == [None, "aten::to"]
    assert tables["findings"]["fix_code"].tolist() == ["num_workers=4"]
    assert tables["findings"]["predicted_mfu"].isna().tolist() == [True]
    assert tables["findings_evidence"]["numbers"].tolist() == [{"share": 0.4}]
    assert tables["findings_evidence"]["step"].isna().tolist() == [True]
    assert len(tables["gpus_ledger"]) == 0
    assert list(tables["gpus_ledger"].columns)[:4] == ["row", "wall", "cause", "time_ns"]
    assert tables["metrics"]["mfu"].isna().tolist() == [True]


def test_tables_of_a_real_report_hold_what_it_holds(tmp_path: Path) -> None:
    report = analyze([kineto.write(SAMPLES["gpt-input-starved"](), tmp_path / "t.json")])
    tables = to_pandas(report)
    assert tables["gpus_ledger"]["time_ns"].sum() == report.gpus[0].window.duration_ns
    assert tables["gpus"]["window_duration_ns"].tolist() == [report.gpus[0].window.duration_ns]
    assert tables["window_steps"]["number"].tolist() == [1, 2, 3, 4]
    assert len(tables["findings"]) == len(report.findings)


@pytest.mark.parametrize(
    ("module", "extra", "ask"),
    [
        ("pandas", "pandas", lambda loaded: to_pandas(loaded)),
        ("pyarrow", "pandas", lambda loaded: to_pandas(loaded)),
        ("hta.trace_analysis", "hta", lambda loaded: crosscheck_hta(loaded)),
        ("hta.common.trace", "hta", lambda loaded: to_hta(loaded)),
    ],
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: str, extra: str, ask: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as raised:
        ask(trace(kernel(0, 10)))
    assert raised.value.hint == f"pip install 'trace-doctor[{extra}]'"


# ---- HTA on our frames

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def linked(*rows: Row | list[Row]) -> Trace:
    return link(trace(*rows))


def partly_covered() -> Trace:
    """10 us of compute, an all-reduce that starts in its middle and lasts 20 us, a gap of 5 us, a copy of 5 us.

    ::

        compute  |----------|
        network       |--------------------|
        copy                                     |-----|
                 0    5    10             25    30     35 us
    """
    return linked(
        launched(0, 10_000, at_ns=-900, correlation=1),
        launched(5_000, 20_000, at_ns=-800, correlation=2, name=ALL_REDUCE, stream=20),
        launched(
            30_000, 5_000, at_ns=26_000, correlation=3, name="Memcpy HtoD (Pinned -> Device)", kind="copy", bytes=50_000
        ),
    )


@pytest.mark.parametrize(("unit", "ticks"), [("us", 1), ("ns", 1000)])
def test_breakdowns_on_our_frames(unit: Any, ticks: int) -> None:
    hta = to_hta(partly_covered(), unit=unit)
    temporal = hta.get_temporal_breakdown(visualize=False).iloc[0]
    assert temporal["kernel_time(us)"] == 35 * ticks
    assert temporal["compute_time(us)"] == 10 * ticks
    assert temporal["non_compute_time(us)"] == 20 * ticks
    assert temporal["idle_time(us)"] == 5 * ticks
    assert hta.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].tolist() == [25.0]
    # on stream 7 the copy follows the kernel by 20 us, launched after its end
    idle = hta.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
    assert idle.set_index(["stream", "idle_category"])["idle_time"][7, "host_wait"] == 20 * ticks


def test_other_analyses_on_our_frames() -> None:
    hta = to_hta(partly_covered())
    kinds, kernels = hta.get_gpu_kernel_breakdown(visualize=False)
    assert dict(zip(kinds["kernel_type"], kinds["sum"], strict=True)) == {
        "COMPUTATION": 5,
        "COMPUTATION overlapping COMMUNICATION": 5,
        "COMMUNICATION": 15,
        "MEMORY": 5,
    }
    assert kernels["sum (us)"].sum() == 35
    bandwidth = hta.get_memory_bw_summary()
    assert bandwidth["memory_bw_gbps", "max"].tolist() == [10.0]  # 50 kB in 5 us


def test_step_numbers_on_our_frames() -> None:
    steps = linked(
        step(3, 0, 10_000),
        step(4, 10_000, 20_000),
        launched(2_000, 4_000, at_ns=1_000, correlation=1),
        launched(11_000, 4_000, at_ns=9_000, correlation=2),
        launched(16_000, 2_000, at_ns=12_000, correlation=3),
        kernel(19_000, 500, correlation=9),
        mark(25_000, 10, "after"),
    )
    hta = to_hta(steps)
    frame = hta.t.get_trace(0)
    on_gpu = frame[frame["stream"] >= 0]
    assert hta.get_profiler_steps() == [3, 4]
    assert on_gpu["iteration"].tolist() == [3, 3, 4, -1]
    assert on_gpu["index_correlation"].gt(0).tolist() == [True, True, True, False]
    assert frame.loc[on_gpu["index_correlation"].iloc[:3], "index_correlation"].tolist() == on_gpu["index"].tolist()[:3]


def test_each_gpu_is_a_rank() -> None:
    def of(rank: int | None, devices: int = 1) -> Trace:
        return trace(*[kernel(10 * number, 5, device=number) for number in range(devices)], rank=rank)

    assert list(to_hta(of(3), of(5)).t.traces) == [3, 5]
    assert list(to_hta(of(3), of(3)).t.traces) == [0, 1]
    assert list(to_hta(of(None), of(5)).t.traces) == [0, 1]
    assert list(to_hta(of(None, devices=2)).t.traces) == [0, 1]


def test_frames_equal_those_of_their_loader(tmp_path: Path) -> None:
    path = kineto.write(SAMPLES["gpt-communication-bound"](), tmp_path / "t.json")
    theirs = comparable(their_analysis(path))
    ours = comparable(holistic.analysis(holistic.gpus([load(path)]), ticks="hta"))
    assert len(ours) > 2_000
    assert ours.equals(theirs)


def test_analyses_answer_as_with_their_loader(tmp_path: Path) -> None:
    path = kineto.write(SAMPLES["gpt-communication-bound"](), tmp_path / "t.json")
    theirs, ours = their_analysis(path), to_hta(load(path))
    for ask in (
        lambda hta: hta.get_profiler_steps(),
        lambda hta: len(hta.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]),
        lambda hta: hta.get_queue_length_summary(ranks=[0]).to_dict(),
        lambda hta: hta.get_memory_bw_summary(ranks=[0]).round(9).to_dict(),
        lambda hta: len(hta.get_aten_op_kernels_and_delay(ranks=[0])[0]),
        lambda hta: len(hta.get_gpu_user_annotation_breakdown(use_gpu_annotation=False, visualize=False)),
        lambda hta: hta.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)[1],
    ):
        assert ask(ours) == ask(theirs)


def their_analysis(path: Path) -> Any:
    from hta.trace_analysis import TraceAnalysis

    return TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)


def comparable(hta: Any) -> pl.DataFrame:
    """HTA's frame in words and in one order; links by the correlation of the partner."""
    (frame,) = hta.t.traces.values()
    words = hta.t.symbol_table.get_sym_table()
    partner = frame["index_correlation"].map(lambda index: frame["correlation"].get(index, -1) if index > 0 else index)
    columns = ["ts", "dur", "stream", "correlation", "iteration", "external_id", "bytes"]
    built = pl.DataFrame(
        {name: frame[name].astype("int64").to_numpy() for name in columns}
        | {
            "name": [words[number] for number in frame["name"]],
            "cat": [words[number] for number in frame["cat"]],
            "partner": partner.astype("int64").to_numpy(),
            "dims": [str(dims) for dims in frame["input_dims"]],
            "types": [str(types) for types in frame["input_type"]],
        }
    )
    # annotations have no external id in our frames
    unmarked = pl.when(pl.col("cat") != "user_annotation").then("external_id").otherwise(-1).alias("external_id")
    return built.filter(pl.col("cat") != "gpu_user_annotation").with_columns(unmarked).sort(pl.all())


# ---- HTA beside our account

LAST_STEP = "the last step: HTA leaves out what is launched after it began"
ROUNDING = "exact times: HTA rounds starts up and ends down to whole microseconds"
STREAMS = "idle is when no stream is busy: HTA sums the gaps between the kernels of each stream"
WINDOW = "the window of the steps used: HTA's runs from its first kernel to its last"
UNLINKED = "kernels without a launch record, which HTA leaves out"
NAMES = "communication is known by its op and by more names: HTA knows nccl...Kernel"
MARKS = "marks of waiting on a stream (cuda_sync) are no GPU work"


def reasons(table: pl.DataFrame, quantity: str) -> dict[str | None, float | None]:
    mine = table.filter(pl.col("quantity") == quantity)
    return dict(mine.select("reason", "change").iter_rows())


def values(table: pl.DataFrame, quantity: str) -> tuple[float | None, float | None]:
    (row,) = table.filter(pl.col("quantity") == quantity).select("hta", "ours").unique().iter_rows()
    return row


def whole_ns(ran: Ran) -> int:
    """What is left of an activity whose start is rounded up and end down to microseconds of the trace's clock."""
    first, after = kineto.CLOCK_NS + ran.start_ns, kineto.CLOCK_NS + ran.end_ns
    return 1000 * (after // 1000 + -first // 1000)


def late_in_its_step(run: Run) -> None:
    """Two kernels and an all-reduce between them; the second one is launched when the GPU has come to rest."""
    with run.step():
        run.do(work.unknown(100_500))
        run.collective(work.collective("allreduce", 1_000_000, duration_ns=300_250))
        run.synchronise()
        run.do(work.unknown(70_300))
        run.synchronise()


def test_reasons_on_the_way_from_their_loader(tmp_path: Path) -> None:
    run = Run(rank=0, world_size=8)
    for _ in range(3):
        late_in_its_step(run)
    table = crosscheck_hta(load(kineto.write(run, tmp_path / "t.json")))
    kernels = [ran for ran in run.ran if ran.work.kind == "compute"]
    seen, left_out = sum(map(whole_ns, kernels[:-1])), whole_ns(kernels[-1])
    exact = 3 * (100_500 + 70_300)
    assert values(table, "compute_ns") == (seen, exact)
    assert reasons(table, "compute_ns") == {LAST_STEP: left_out, ROUNDING: exact - seen - left_out}
    begin, end = ledger.used_window(run)
    assert reasons(table, "window_ns")[WINDOW] == (end - begin) - (run.ran[-1].end_ns - run.ran[0].start_ns)
    assert values(table, "overlap_percent") == (0.0, 0.0)
    assert reasons(table, "overlap_percent") == {None: 0.0}


def test_idle_of_streams_is_not_idle_of_the_gpu() -> None:
    table = crosscheck_hta(partly_covered())
    # stream 7 rests from 10 to 30 us, stream 20 has one kernel; nothing runs from 25 to 30 us
    assert values(table, "stream_idle_ns") == (20_000, 5_000)
    assert reasons(table, "stream_idle_ns") == {STREAMS: -15_000}
    assert reasons(table, "idle_ns") == {None: 0.0}
    assert values(table, "overlap_percent") == (25.0, 25.0)


def test_communication_of_other_libraries() -> None:
    custom = "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)"
    reduce = launched(8_000, 4_000, at_ns=-8, correlation=2, name=custom)
    table = crosscheck_hta(linked(launched(0, 6_000, at_ns=-9, correlation=1), reduce))
    assert reasons(table, "compute_ns") == {NAMES: -4_000}
    assert reasons(table, "non_compute_ns") == {NAMES: 4_000}
    assert values(table, "overlap_percent") == (None, 0.0)


def test_kernels_without_a_launch() -> None:
    table = crosscheck_hta(
        linked(
            step(1, 0, 10_000),
            step(2, 10_000, 20_000),
            launched(0, 9_000, at_ns=0, correlation=1),
            launched(12_000, 8_000, at_ns=11_000, correlation=2),
            kernel(9_000, 3_000, correlation=7),
        )
    )
    assert values(table, "compute_ns") == (17_000, 20_000)
    assert reasons(table, "compute_ns") == {UNLINKED: 3_000}
    assert reasons(table, "idle_ns") == {UNLINKED: -3_000}


def test_marks_of_waiting(tmp_path: Path) -> None:
    run = Run()
    with run.step():
        run.do(work.unknown(50_000))
        run.host(2 * MS)
        run.do(work.unknown(50_000))
    path = kineto.write(run, tmp_path / "t.json")
    text = json.loads(path.read_text())
    place = next(event for event in text["traceEvents"] if event.get("cat") == "kernel")
    wait = {"ts": math.ceil(place["ts"]) + 60, "dur": 400.0, "cat": "cuda_sync", "name": "Stream Sync"}
    text["traceEvents"].append(place | wait | {"args": {"stream": 7, "correlation": -1, "device": 0}})
    path.write_text(json.dumps(text))
    changes = reasons(crosscheck_hta(load(path)), "idle_ns")
    assert changes[MARKS] == 400_000
    # all ends and starts stand 97 ns after a microsecond: rounded, the gap is one longer
    assert changes[ROUNDING] == -1_000


def test_where_hta_stops_it_is_said() -> None:
    # rounded, the copy lasts from 21 to 20 us: HTA asserts that nothing is negative
    copy = launched(20_200, 600, at_ns=-8, correlation=2, name="Memcpy HtoD (Pinned -> Device)", kind="copy", bytes=8)
    table = crosscheck_hta(linked(launched(0, 10_000, at_ns=-9, correlation=1), copy))
    assert values(table, "idle_ns") == (None, 10_200)
    assert reasons(table, "idle_ns") == {f"HTA gives no number before: {ROUNDING}": None}


@pytest.mark.parametrize("name", ["gpt-communication-bound", "gpt-input-starved", "gpt-launch-bound"])
def test_nothing_stays_unexplained(tmp_path: Path, name: str) -> None:
    table = crosscheck_hta(load(kineto.write(SAMPLES[name](), tmp_path / "t.json")))
    assert set(table["reason"].drop_nulls()) <= {LAST_STEP, ROUNDING, STREAMS, WINDOW}
    whole = table.group_by("quantity").agg(pl.col("hta", "ours").first(), pl.col("change").sum()).drop_nulls()
    assert len(whole) >= 5
    assert (whole["ours"] - whole["hta"] - whole["change"]).round(2).to_list() == [0.0] * len(whole)
