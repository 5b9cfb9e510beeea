"""The GPU's own counters: means over the window and each step, bounds for MFU, proof for or against the memory wall."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulator import US, Run, nsight, work
from trace_doctor import Report, analyze
from trace_doctor.report import Counter, StepValue
from trace_doctor.reporter import terminal

PERIOD_NS = 100 * US
SM, TENSOR, CLOCK = "SMs Active [Throughput %]", "Tensor Active [Throughput %]", "GPC Clock Frequency [MHz]"
READ, WRITE = "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]"
LINK = [f"NVLink {way} Requests User Data [Throughput %]" for way in ("RX", "TX")]

Values = Callable[[str, int], int | None]


def program(*, shapes: bool = False) -> Run:
    """Three steps: a matmul, then 3 ms of a kernel that does no tensor work."""
    run = Run(records_shapes=shapes)
    for _ in range(3):
        with run.step():
            run.do(work.mm(8192, 8192, 8192))
            run.do(work.add([8192, 8192], duration_ns=3_000 * US))
            run.synchronise()
    return run


def sampled(folder: Path, run: Run, names: list[str], value: Values) -> Report:
    """The report of the run with a sample of each metric every 100 us."""
    times = range(0, max(ran.end_ns for ran in run.ran) + PERIOD_NS, PERIOD_NS)
    samples = [(name, at_ns, told) for at_ns in times for name in names if (told := value(name, at_ns)) is not None]
    return analyze([nsight.write(folder / "run.sqlite", run, samples=samples)])


def counter(report: Report, name: str) -> Counter:
    return next(one for one in report.metrics.counters if one.name == name)


def memory_bound(run: Run, at_ns: int) -> bool:
    """Whether a whole sample lies in a kernel without tensor work."""
    return any(
        ran.work.kind == "compute" and ran.start_ns <= at_ns - PERIOD_NS and at_ns <= ran.end_ns for ran in run.ran
    )


def test_means_over_the_window_and_each_step(tmp_path: Path) -> None:
    run = program()
    marks = [step.start_ns for step in run.steps]

    def of_step(_: str, at_ns: int) -> int:
        return 20 * sum(mark <= at_ns for mark in marks)

    report = sampled(tmp_path, run, [SM], of_step)
    found = counter(report, "sm_active")
    inside = [at for at in range(0, run.now_ns, PERIOD_NS) if marks[0] <= at < run.steps[-1].end_ns]
    assert found.steps == [StepValue(number=n, value=v) for n, v in ((1, 0.2), (2, 0.4), (3, 0.6))]
    assert found.samples == len(inside)
    assert found.value == pytest.approx(sum(of_step(SM, at) for at in inside) / len(inside) / 100)
    assert found.recorded_as == [SM]


def test_names_of_one_counter_are_summed_and_unknown_ones_left_out(tmp_path: Path) -> None:
    names = [LINK[0], "NVLink RX Responses Protocol Data [Throughput %]", "Compute Warps in Flight [Avg]"]
    report = sampled(tmp_path, program(), names, lambda name, _: 30 if "User" in name else 4)
    assert [(one.name, one.value) for one in report.metrics.counters] == [("nvlink_received", pytest.approx(0.34))]


def test_the_clock_is_a_share_of_the_highest(tmp_path: Path) -> None:
    report = sampled(tmp_path, program(), [CLOCK], lambda *_: 1_485_000_000)
    assert counter(report, "clock").value == pytest.approx(0.75)


def test_few_samples_give_no_mean(tmp_path: Path) -> None:
    run = program()
    report = sampled(tmp_path, run, [SM], lambda _, at_ns: 50 if 11_000 * US <= at_ns < 11_900 * US else None)
    assert (counter(report, "sm_active").samples, counter(report, "sm_active").value) == (9, None)


def test_without_shapes_tensor_activity_bounds_mfu(tmp_path: Path) -> None:
    report = sampled(tmp_path, program(), [TENSOR], lambda *_: 21)
    metrics = report.metrics
    assert (metrics.mfu, metrics.mfu_high, metrics.hfu, metrics.tensor_active) == (None, 0.21, 0.21, 0.21)
    assert report.workload.flops_basis == "gpu_metrics"
    assert "at most 21.0" in terminal.render(report).replace("\u202f", " ").replace("\xa0", " ")


def test_tensor_activity_never_widens_the_bound(tmp_path: Path) -> None:
    metrics = sampled(tmp_path, program(), [TENSOR], lambda *_: 90).metrics
    assert metrics.mfu_high == metrics.tensor_share


def test_work_in_a_faster_dtype_does_more_in_the_same_time(tmp_path: Path) -> None:
    run = Run(records_shapes=False)
    with run.step():
        run.do(work.scaled_mm(16_384, 16_384, 16_384))
        run.synchronise()
    # dense FP8 of an H100 is twice its BF16
    assert sampled(tmp_path, run, [TENSOR], lambda *_: 21).metrics.mfu_high == pytest.approx(0.42, rel=1e-3)


def test_shapes_say_more_than_counters(tmp_path: Path) -> None:
    run = program(shapes=True)
    report = sampled(tmp_path, run, [TENSOR], lambda *_: 90)
    plain = analyze([nsight.write(tmp_path / "plain.sqlite", run)])
    assert report.workload.flops_basis == "shapes"
    assert (report.metrics.mfu, report.metrics.hfu) == (plain.metrics.mfu, plain.metrics.hfu)
    assert [warning.code for warning in report.warnings] == [warning.code for warning in plain.warnings]


def test_more_mfu_than_tensor_activity_is_a_contradiction(tmp_path: Path) -> None:
    report = sampled(tmp_path, program(shapes=True), [TENSOR], lambda *_: 5)
    assert "mfu-above-tensor-activity" in [warning.code for warning in report.warnings]


@pytest.mark.parametrize(("busy", "is_proven"), [(45, True), (9, False)])
def test_memory_traffic_proves_or_denies_the_memory_wall(tmp_path: Path, busy: int, is_proven: bool) -> None:
    run = program()
    report = sampled(tmp_path, run, [READ, WRITE], lambda _, at_ns: busy if memory_bound(run, at_ns) else 1)
    assert [counter(report, name).while_memory_bound for name in ("dram_read", "dram_write")] == [busy / 100] * 2
    assert ("memory-wall-unproven" in [warning.code for warning in report.warnings]) is not is_proven


def test_sampled_traffic_replaces_what_is_modelled(tmp_path: Path) -> None:
    report = sampled(tmp_path, program(), [READ, WRITE, *LINK], lambda name, _: 30 if name in (READ, LINK[1]) else 10)
    used = {one.name: (one.value, one.basis) for one in report.metrics.utilisations}
    assert used["memory_bandwidth"] == (pytest.approx(0.4), "measured")
    assert "link" not in used  # no collective ran
    assert report.metrics.memory_bandwidth_utilisation == pytest.approx(0.4)


def test_without_samples_nothing_is_said(tmp_path: Path) -> None:
    report = analyze([nsight.write(tmp_path / "run.sqlite", program())])
    assert (report.metrics.counters, report.metrics.tensor_active, report.metrics.hfu) == ([], None, None)


def test_each_gpu_has_its_own_counters(tmp_path: Path) -> None:
    runs = [program(), program()]
    samples = [(SM, at_ns, 40) for at_ns in range(0, runs[0].now_ns, PERIOD_NS)]
    report = analyze([nsight.write(tmp_path / "run.sqlite", *runs, samples=samples)])
    assert [[one.name for one in gpu.metrics.counters] for gpu in report.gpus] == [["sm_active"], []]
    assert report.metrics.counters == []
