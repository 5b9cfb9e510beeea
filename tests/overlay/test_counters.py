"""The curves: means over the steps are the numbers of the report."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from tests.overlay.reading import drawn, ns
from tests.simulator import kineto
from tests.simulator.samples import SAMPLES
from trace_doctor.overlay.counters import UNITS


@pytest.mark.parametrize("name", SAMPLES)
def test_means_over_the_steps_are_the_report(name: str, tmp_path: Path) -> None:
    found = drawn(kineto.write(SAMPLES[name](), tmp_path / "trace.json"))
    report = found.diagnosis.report
    steps = [step for step in report.window.steps if step.used]
    curves = {name: found.curve(name) for name in UNITS}
    for name, curve in curves.items():
        assert [ns(at) for at, _ in curve] in ([step.start_ns for step in steps], [])
        assert {key for _, values in curve for key in values} <= {UNITS[name]}

    def sum_of(name: str, *, per_time: bool) -> float:
        values = [float(values[UNITS[name]]) for _, values in curves[name]]
        return sum(v * (step.duration_ns if per_time else 1) for v, step in zip(values, steps, strict=True))

    window_ns = report.window.duration_ns
    # the row of the ledger is whole nanoseconds
    mfu = pytest.approx(100 * (report.metrics.mfu or 0), abs=100 / window_ns)
    assert sum_of("MFU", per_time=True) / window_ns == mfu
    peak = report.device.peak_flops[report.device.peak_dtype or ""] / 1e12
    achieved = [float(values["TFLOP/s"]) for _, values in curves["achieved"]]
    assert achieved == pytest.approx([float(values["%"]) / 100 * peak for _, values in curves["MFU"]])
    moved = next(one.rate or 0 for one in report.metrics.utilisations if one.name == "memory_bandwidth") / 1e9
    assert sum_of("memory bandwidth", per_time=True) / window_ns == pytest.approx(moved, rel=1e-9)
    if report.partition.communication_ns:
        exposed_ms = report.partition.exposed_communication_ns / 1e6
        assert sum_of("exposed communication", per_time=False) == pytest.approx(exposed_ms, rel=1e-9)
    else:
        assert curves["exposed communication"] == []


def test_a_curve_without_a_number_is_left_out(tmp_path: Path) -> None:
    run = SAMPLES["gpt-launch-bound"]()
    run.records_shapes = False
    found = drawn(kineto.write(run, tmp_path / "trace.json"))
    assert found.diagnosis.report.metrics.mfu is None
    assert (found.curve("MFU"), found.curve("achieved")) == ([], [])


def test_a_window_without_steps_has_one_value(tmp_path: Path) -> None:
    path = kineto.write(SAMPLES["gpt-launch-bound"](), tmp_path / "trace.json")
    path.write_bytes(path.read_bytes().replace(b"ProfilerStep#", b"Something#"))
    found = drawn(path)
    spans = found.diagnosis.analyses[0].spans
    assert [ns(at) for at, _ in found.curve("MFU")] == [Decimal(start) for start in spans["start_ns"]]
