"""What changed between two reports, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.build import MS, finding, kernel, report, row, without_steps
from trace_doctor import errors
from trace_doctor.comparing.assembly import compare
from trace_doctor.comparing.saved import read
from trace_doctor.comparing.sweep import settings
from trace_doctor.comparison import Change, Comparable, KernelChange, Unit
from trace_doctor.report import DeviceRow, Gpu, LedgerRow, Report, to_json

STEADY = (10.0, 10.0, 10.0, 10.0, 10.0)
BASE = report(row("mfu", "model FLOPs", *STEADY), row("host", "input pipeline", 5, 5.1, 5.2, 5.3, 5.4))


def test_the_rows_explain_the_change_and_sum_to_it() -> None:
    new = report(
        row("mfu", "model FLOPs", *STEADY),
        row("host", "input pipeline", 1, 1.1, 1.2, 1.3, 1.4),
        row("communication", "wire time", 2, 2, 2, 2, 2, names=("ncclKernel",)),
    )
    found = compare([BASE, new])
    # the mean of the input pipeline falls from 5.2 to 1.2 ms, and 2 ms of communication are new
    assert [(one.cause, one.base_ns, one.new_ns, one.change_ns, one.proven) for one in found.differences] == [
        ("input pipeline", 5_200_000, 1_200_000, -4_000_000, True),
        ("wire time", 0, 2_000_000, 2_000_000, True),
        ("model FLOPs", 10_000_000, 10_000_000, 0, False),
    ]
    assert found.differences[1].names == ["ncclKernel"]
    assert found.step_time == Change(
        base=15_200_000, new=13_200_000, change=13.2 / 15.2 - 1, p_value=pytest.approx(2 / 252)
    )
    assert found.unit == Unit(name="step", base_count=5, new_count=5)


def test_few_steps_prove_nothing() -> None:
    few = report(row("host", "host code", 1, 2, 3))
    found = compare([few, report(row("host", "host code", 7, 8, 9))])
    assert found.step_time.p_value is None
    assert [one.proven for one in found.differences] == [None]


def test_a_report_against_itself_has_no_difference() -> None:
    found = compare([BASE, BASE], ["step_time>+3%", "mfu<-1pt", "new:info"])
    assert (found.step_time.change, found.mfu.change) == (0, 0)
    assert {one.change_ns for one in found.differences} == {0}
    assert [gate.result for gate in found.gates] == ["pass"] * 3
    assert found.findings.new == found.findings.fixed == found.findings.changed == []


@given(st.lists(st.lists(st.floats(0, 50), min_size=3, max_size=3), min_size=2, max_size=6))
def test_changes_of_the_rows_sum_to_the_change_of_the_mean_step(table: list[list[float]]) -> None:
    half = len(table) // 2
    sides = [
        report(*[row("host", f"cause {place}", *values) for place, values in enumerate(rows)])
        for rows in (table[:half], table[half:])
    ]
    found = compare(sides)
    means = [round(side.window.duration_ns / 3) for side in sides]
    assert sum(one.change_ns for one in found.differences) == means[1] - means[0]


def test_captures_without_steps_are_compared_per_attention_kernel() -> None:
    base = without_steps(300, kernel("flash_fwd", family="attention", count=30), kernel("gemm", time_ms=90))
    new = without_steps(300, kernel("flash_fwd", family="attention", count=20), kernel("gemm", time_ms=80))
    found = compare([base, new])
    assert found.unit == Unit(name="flash_fwd", base_count=30, new_count=20)
    assert found.step_time == Change(base=10 * MS, new=15 * MS, change=0.5)
    assert found.kernels[0] == KernelChange(name="gemm", base_ns=3 * MS, new_ns=4 * MS, status="slower")


def test_launches_of_other_shapes_are_no_unit() -> None:
    base = without_steps(300, kernel("gemm", count=30, flops=1e9))
    new = without_steps(300, kernel("gemm", count=20, flops=2e9))
    assert compare([base, new]).unit == Unit(name="window")


def test_kernels_come_and_go() -> None:
    base = without_steps(10, kernel("old", time_ms=2), kernel("same", time_ms=1), kernel("slow", time_ms=1))
    new = without_steps(10, kernel("young", time_ms=3), kernel("same", time_ms=1.04), kernel("slow", time_ms=2))
    found = {one.name: one.status for one in compare([base, new]).kernels}
    assert found == {"young": "new", "old": "gone", "slow": "slower", "same": "same"}


def test_findings_come_go_and_change() -> None:
    base = report(row("host", "x", 1), findings=[finding("a", 5), finding("b", 3), finding("c", 9, cause="one")])
    new = report(row("host", "x", 1), findings=[finding("a", 5.5), finding("d", 2), finding("c", 4, cause="other")])
    found = compare([base, new]).findings
    assert [(one.code, one.new_points) for one in found.new] == [("d", 2)]
    assert [(one.code, one.base_points) for one in found.fixed] == [("b", 3)]
    assert [(one.code, one.base_points, one.new_points) for one in found.changed] == [("c", 9, 4)]


def test_another_machine_is_not_comparable_and_more_work_only_partly() -> None:
    other = report(row("host", "x", 1), device=DeviceRow(name="NVIDIA A100-SXM4-80GB", peak_dtype="bf16"))
    assert compare([BASE, other]).comparable.verdict == "no"
    assert compare([BASE, report(row("host", "x", 1), gpus=[Gpu(), Gpu()])]).comparable.verdict == "no"
    small = without_steps(10, kernel("gemm", count=4, flops=1e9, dtype="bf16"))
    large = without_steps(10, kernel("gemm", count=4, flops=3e9, dtype="bf16"))
    assert compare([small, large]).comparable == Comparable(
        verdict="partly", why=["a window does 3 times the FLOPs: other shapes, or more of them"]
    )
    assert compare([BASE, BASE]).comparable == Comparable()


# ---- sweeps


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("batch_64", {"batch": 64}),
        ("run-tp8-pp2/bs=16_seq4096", {"tp": 8, "pp": 2, "batch": 16, "sequence": 4096}),
        ("num_workers_4", {"workers": 4}),
        ("stamp20260101", {}),
        ("mapping8", {}),
    ],
)
def test_settings_are_read_from_names(name: str, found: dict[str, float]) -> None:
    assert settings(name) == found


def point(batch: int, mfu: float | None, cause: str = "launch-bound") -> Report:
    loss = LedgerRow(
        wall="small_kernels", cause=cause, time_ns=MS, share=0.5, mfu_points=50, basis="measured", per_step_ns=[MS]
    )
    return report(loss, path=f"sweep/batch_{batch}.json.gz", mfu=mfu)


def test_a_sweep_is_ranked_with_what_binds_and_which_point_comes_next() -> None:
    found = compare([point(1, 0.1), point(2, 0.2), point(4, 0.3, "too short to fill the GPU")])
    assert [(one.label, one.settings, one.binds) for one in found.sweep] == [
        ("batch_4", {"batch": 4}, "small_kernels / too short to fill the GPU"),
        ("batch_2", {"batch": 2}, "small_kernels / launch-bound"),
        ("batch_1", {"batch": 1}, "small_kernels / launch-bound"),
    ]
    assert found.next_point == "batch 8: from 2 to 4 it still rose by 50%"


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (("/runs/a/t.json.gz", "b/t.json.gz"), ("/runs/a/t", "b/t")),
        (("a/t.json", "b/t.json"), ("a/t", "b/t")),
        (("runs/a/t.json", "runs/b/t.json"), ("a/t", "b/t")),
        (("t.json", "t.json"), ("t", "t")),
    ],
)
def test_points_of_a_sweep_are_told_apart_by_their_paths(paths: tuple[str, str], labels: tuple[str, str]) -> None:
    loss = row("memory", "copy", 10, 10, 10)
    found = compare([report(loss, path=path) for path in (*paths, paths[0])])
    assert {one.label for one in found.sweep} == set(labels)


def test_where_more_does_not_help_the_sweep_says_so() -> None:
    assert (
        compare([point(1, 0.1), point(2, 0.3), point(4, 0.2)]).next_point
        == "batch 2 is the best of these: more does not help"
    )
    assert (
        compare([point(1, 0.1), point(2, 0.3), point(4, 0.31)]).next_point
        == "batch 4 is the best, and it hardly rises any more"
    )


def test_without_mfu_points_are_ranked_by_samples_a_second() -> None:
    found = compare([point(1, None), point(4, None), point(2, None)])
    assert [(one.label, one.per_second) for one in found.sweep] == [
        ("batch_4", 4000.0),
        ("batch_2", 2000.0),
        ("batch_1", 1000.0),
    ]


# ---- saved reports


def test_a_saved_report_is_read_back_and_a_trace_is_none(tmp_path: Path) -> None:
    saved, trace = tmp_path / "report.json", tmp_path / "trace.json"
    saved.write_bytes(to_json(BASE))
    trace.write_text('{"traceEvents": []}')
    assert read(saved) == BASE
    assert read(trace) is None
    assert read(tmp_path) is None


def test_a_broken_saved_report_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text('{"schema_version": "1.0", "ledger": 5}')
    with pytest.raises(errors.CorruptTraceError, match="saved report that can't be read"):
        read(path)


def test_one_report_is_nothing_to_compare() -> None:
    with pytest.raises(errors.UsageError, match="nothing to compare"):
        compare([BASE])
