"""The kernel table for people."""

from __future__ import annotations

import msgspec

from tests.reporter import samples
from trace_doctor.report import KernelRow, Kernels, Report, Spread
from trace_doctor.reporter import markdown, terminal
from trace_doctor.reporter.view import view

ROWS = [
    KernelRow(
        name="void cutlass::gemm_bf16", family="gemm", count=80, time_ns=40_000_000, share=0.4,
        duration_ns=Spread(median=5e5, p95=6e5), flops=1e9, bytes=1e6, intensity=1e3, ideal_ns=4e5, achieved_flops=7.5e14,
        efficiency=0.76, best_efficiency=0.9, bound="compute",
    ),
    KernelRow(
        name="elementwise", family="elementwise", count=10, time_ns=5_000_000, share=0.05, achieved_bandwidth=2.5e12,
        efficiency=0.75, bound="memory",
    ),
    KernelRow(name="ncclAllReduce", family="communication", count=4, time_ns=1_000_000, share=0.01),
]  # fmt: skip


def shown(**more: object) -> Report:
    table = Kernels(rows=ROWS, **more)  # type: ignore[arg-type]
    return msgspec.structs.replace(samples.busy_but_slow(), kernels=table)


def test_a_row_says_time_rate_and_roof() -> None:
    found = view(shown()).kernels
    # 40 ms over the three steps of the window, 80 launches over 3 steps of 20 GPUs
    assert found.rows[0][1:] == ("1.3", "40.0", "13.33", "750\u00a0TFLOP/s", "76\u00a0%", "compute")
    assert found.rows[1][4:] == ("2.50\u00a0TB/s", "75\u00a0%", "memory")
    assert found.rows[2][4:] == ("–", "–", "–")
    assert found.more is None


def test_rows_beyond_those_asked_for_are_counted() -> None:
    found = view(shown(shown=1, more=7)).kernels
    assert len(found.rows) == 1
    assert found.more == "9\u00a0kernels more: --top-kernels N shows more, the JSON report has up to 100"


def test_the_title_says_what_a_row_stands_for_in_both_formats() -> None:
    report = shown(group_by="module")
    for printed in (terminal.render(report), markdown.render(report)):
        assert "The largest modules, under their roofline" in printed
        assert "gemm_bf16" in printed


def test_without_rows_there_is_no_table() -> None:
    assert "under their roofline" not in terminal.render(shown(shown=0)) + markdown.render(shown(shown=0))
