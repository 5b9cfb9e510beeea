"""Whether two reports may be held against each other."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor.comparing.units import SAME_WORK, unit_of
from trace_doctor.comparison import Comparable
from trace_doctor.report import Report

MOST_TENSOR_TIME = 0.5


def comparable(base: Report, new: Report) -> Comparable:
    """Whether machine and precision are the same ("no" where not), and whether the work is ("partly" where not)."""
    machine, work = list(_of_machine(base, new)), list(_of_work(base, new))
    return Comparable(verdict="no" if machine else "partly" if work else "yes", why=machine + work)


def _of_machine(base: Report, new: Report) -> Iterator[str]:
    if base.device.name and new.device.name and base.device.name != new.device.name:
        yield f"the GPUs differ: {base.device.name} and {new.device.name}"
    if len(base.gpus) != len(new.gpus):
        yield f"the number of GPUs differs: {len(base.gpus)} and {len(new.gpus)}"
    if base.device.peak_dtype != new.device.peak_dtype:
        yield f"MFU is held against different peaks: {base.device.peak_dtype} and {new.device.peak_dtype}"


def _of_work(base: Report, new: Report) -> Iterator[str]:
    one, other = _dtype(base), _dtype(new)
    if one and other and one != other:
        yield f"most tensor work runs in another dtype: {one} and {other}"
    unit = unit_of(base, new)
    counts = unit.base_count, unit.new_count
    flops = [_flops(report) / count for report, count in zip((base, new), counts, strict=True)]
    if min(flops) > 0 and abs(flops[1] / flops[0] - 1) > SAME_WORK:
        what = unit.name if unit.name in ("step", "window") else "layer"
        yield f"a {what} does {flops[1] / flops[0]:.3g} times the FLOPs: other shapes, or more of them"
    if bool(base.window.step_time_ns.mean) != bool(new.window.step_time_ns.mean):
        yield "only one of them has steps"


def _dtype(report: Report) -> str | None:
    """The dtype that holds most tensor time."""
    times: dict[str, int] = {}
    for row in report.kernels.rows:
        if row.dtype:
            times[row.dtype] = times.get(row.dtype, 0) + row.time_ns
    largest = max(times, key=lambda dtype: times[dtype], default=None)
    return largest if largest and times[largest] >= MOST_TENSOR_TIME * sum(times.values()) else None


def _flops(report: Report) -> float:
    """FLOPs of the tensor kernels of the window, mean over GPUs, as far as their shapes are known."""
    return sum((row.flops or 0.0) * row.count for row in report.kernels.rows) / max(1, len(report.gpus))
