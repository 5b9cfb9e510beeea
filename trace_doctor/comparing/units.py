"""What the times of two reports are divided by, so that they hold the same work."""

from __future__ import annotations

from trace_doctor.comparison import Unit
from trace_doctor.report import KernelRow, Report

SAME_WORK = 0.01
"""FLOPs that differ by less are the same work."""
LEAST_COUNT = 4
"""Fewer launches of a kernel don't count a window well enough."""


def unit_of(base: Report, new: Report) -> Unit:
    """A step where both have steps; else the attention or, without one, the largest kernel that both ran; else the window.

    Captures of a fixed length hold more or less work, not more or less time: they are compared per layer.
    """
    if steps(base) and steps(new):
        return Unit(name="step", base_count=steps(base), new_count=steps(new))
    counted = _counted(base, new)
    return counted or Unit(name="window")


def steps(report: Report) -> int:
    """Used steps of a report."""
    return sum(step.used for step in report.window.steps)


def _counted(base: Report, new: Report) -> Unit | None:
    """Counts of the kernels that are launched once a layer: attention forward, else the matmul with most time in both."""
    for family in ("attention", "gemm", "convolution"):
        of_base, of_new = _counts(base, family), _counts(new, family)
        common = [name for name in of_base if name in of_new and _same_work(of_base[name], of_new[name])]
        if common:
            name = max(common, key=lambda name: (of_base[name].time_ns + of_new[name].time_ns, name))
            before, after = of_base[name].count, of_new[name].count
            if min(before, after) >= LEAST_COUNT:
                return Unit(
                    name=name, base_count=before / max(1, len(base.gpus)), new_count=after / max(1, len(new.gpus))
                )
    return None


def _counts(report: Report, family: str) -> dict[str, KernelRow]:
    return {row.name: row for row in report.kernels.rows if row.family == family}


def _same_work(one: KernelRow, other: KernelRow) -> bool:
    """Launches of other shapes are another unit."""
    return not one.flops or not other.flops or abs(other.flops / one.flops - 1) <= SAME_WORK
