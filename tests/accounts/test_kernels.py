"""The kernel table, from simulated programs whose kernels have known work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator import Run, kineto, work
from tests.simulator.samples import SAMPLES
from trace_doctor import analyze
from trace_doctor.options import Options
from trace_doctor.report import Report

# on an H100: 2 x 4096^3 FLOP in 198 445 ns, 70 % of 989.4 TFLOP/s
MATMUL = work.mm(4096, 4096, 4096, efficiency=0.7)
MATMUL_NS, MATMUL_FLOPS, MATMUL_BYTES = 198_445, 2 * 4096**3, 3 * 2 * 4096**2


def report_of(run: Run, folder: Path, **options: object) -> Report:
    return analyze([kineto.write(run, folder / "trace.json")], Options(**options))  # type: ignore[arg-type]


def matmuls(count: int) -> Run:
    run = Run()
    with run.step():
        for _ in range(count):
            run.do(MATMUL)
    return run


def test_a_row_says_work_time_and_roof(tmp_path: Path) -> None:
    report = report_of(matmuls(2), tmp_path)
    (row,) = report.kernels.rows
    assert (row.family, row.dtype, row.op, row.count) == ("gemm", "bf16", "aten::mm", 2)
    assert (row.time_ns, row.duration_ns.median) == (2 * MATMUL_NS, MATMUL_NS)
    assert row.share == 2 * MATMUL_NS / report.window.duration_ns
    assert (row.flops, row.bytes, row.intensity) == (MATMUL_FLOPS, MATMUL_BYTES, MATMUL_FLOPS / MATMUL_BYTES)
    assert row.ideal_ns == pytest.approx(1e9 * MATMUL_FLOPS / 989.4e12, rel=1e-12)
    assert row.efficiency == pytest.approx(row.ideal_ns / MATMUL_NS, rel=1e-12)
    assert row.achieved_flops == pytest.approx(1e9 * MATMUL_FLOPS / MATMUL_NS, rel=1e-12)
    assert row.bound == "compute"


def test_rows_are_in_the_order_of_their_time_and_the_rest_is_counted(tmp_path: Path) -> None:
    run = Run()
    with run.step():
        run.do(MATMUL)
        run.do(work.add([4096, 4096]))
        run.do(MATMUL)
    report = report_of(run, tmp_path, top_kernels=1)
    assert [(row.family, row.count) for row in report.kernels.rows] == [("gemm", 2), ("elementwise", 1)]
    assert (report.kernels.shown, report.kernels.more, report.kernels.more_ns) == (1, 0, 0)


def test_where_most_of_the_time_has_no_work_rates_are_unknown(tmp_path: Path) -> None:
    run = Run()
    with run.step():
        run.do(work.unknown(50_000))
    (row,) = report_of(run, tmp_path).kernels.rows
    assert (row.name, row.family, row.time_ns) == ("my_secret_kernel_v7", "unknown", 50_000)
    assert (row.flops, row.bytes, row.ideal_ns, row.efficiency, row.bound) == (None,) * 5


def test_without_a_device_work_is_known_but_no_roof(tmp_path: Path) -> None:
    run = matmuls(1)
    text = kineto.write(run, tmp_path / "named.json").read_text().replace("NVIDIA H100 80GB HBM3", "Secret GPU 9000")
    (tmp_path / "trace.json").write_text(text)
    (row,) = analyze([tmp_path / "trace.json"]).kernels.rows
    assert (row.flops, row.bytes) == (MATMUL_FLOPS, MATMUL_BYTES)
    assert (row.ideal_ns, row.efficiency, row.best_efficiency, row.bound) == (None,) * 4


def test_what_physics_keeps_and_what_can_be_won_is_what_lies_below_the_roofline(tmp_path: Path) -> None:
    report = report_of(matmuls(3), tmp_path)
    below = sum(row.time_ns for row in report.ledger if row.cause == "below the roofline")
    # the best matmul reaches 794.5 of 989.4 TFLOP/s: it would take as long as 0.803 of the peak allows
    ideal_ns = 1e9 * MATMUL_FLOPS / 989.4e12
    kept_ns = round(3 * (ideal_ns * 989.4 / 794.5 - ideal_ns))
    assert report.roofline.below_ns == below
    assert report.roofline.kept_ns == kept_ns
    assert report.roofline.winnable_ns == below - kept_ns


@pytest.mark.parametrize("by", ["kernel", "op", "module", "annotation"])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_groups_hold_all_that_the_gpu_ran(name: str, by: str, tmp_path: Path) -> None:
    report = report_of(SAMPLES[name](), tmp_path, group_by=by)
    parts = report.partition
    ran_ns = parts.compute_ns + parts.exposed_communication_ns + parts.exposed_copy_ns
    table = report.kernels
    assert abs(sum(row.time_ns for row in table.rows) + table.more_ns - ran_ns) <= len(table.rows)
    assert [row.time_ns for row in table.rows] == sorted((row.time_ns for row in table.rows), reverse=True)
