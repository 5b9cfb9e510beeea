"""Many points of one experiment: ranked, with what binds at each, and which to try next."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import PurePath

from trace_doctor.comparison import SweepRow
from trace_doctor.report import LedgerRow, Report, Wall
from trace_doctor.sizes import settings

BUSY_WALLS: tuple[Wall, ...] = ("recompute", "compute", "memory", "communication", "small_kernels")
IDLE_CAUSES = ("launch-bound", "device-side gap", "allocator")
"""Causes of these walls that are gaps."""
ENOUGH_POINTS = 3
STILL_RISING = 1.05


def sweep(reports: Sequence[Report]) -> tuple[list[SweepRow], str | None]:
    """The reports best first by `measure_of`, and which point to try next."""
    labels = _labels(
        [report.sources[0].path if report.sources else f"report {place}" for place, report in enumerate(reports)]
    )
    rows = [_row(place, report, label) for place, (report, label) in enumerate(zip(reports, labels, strict=True))]
    measures = [measure_of(report, row) for report, row in zip(reports, rows, strict=True)]
    order = sorted(
        range(len(rows)),
        key=lambda place: (-(measures[place] or 0.0), rows[place].step_time_ns or 0.0, rows[place].label),
    )
    ranked = [rows[place] for place in order]
    known = [measures[place] or 0.0 for place in order]
    return ranked, _next(ranked, known) if len(rows) >= ENOUGH_POINTS else None


def _labels(paths: Sequence[str]) -> list[str]:
    """Names without what all paths have in common; whole paths where that is nothing."""
    if len({*paths}) == 1:
        names = [PurePath(path).name for path in paths]
    else:
        shared = _shared([PurePath(path).parent for path in paths])
        names = [os.path.relpath(path, shared) if shared else path for path in paths]
    return [re.sub(r"(\.pt\.trace)?\.(json|sqlite|nsys-rep)(\.(gz|zst))?$", "", name) for name in names]


def _shared(folders: Sequence[PurePath]) -> str:
    try:
        return os.path.commonpath(folders)
    except ValueError:  # absolute and relative ones, or other drives
        return ""


def _row(place: int, report: Report, label: str) -> SweepRow:
    sizes = settings(label)
    step_ns = report.window.step_time_ns.median or float(report.window.duration_ns) or None
    amount = sizes.get("batch", 0) * sizes.get("sequence", 1)
    losses = [row for row in report.ledger if row.wall != "mfu"]
    busy = [row for row in losses if row.wall in BUSY_WALLS and row.cause not in IDLE_CAUSES]
    utilisation = report.metrics.gpu_utilisation
    return SweepRow(
        label=label,
        settings=sizes,
        step_time_ns=step_ns,
        mfu=report.metrics.mfu,
        achieved_flops=report.metrics.achieved_flops,
        per_second=report.metrics.tokens_per_s or (1e9 * amount / step_ns if amount and step_ns else None),
        busy_mfu=report.metrics.mfu / utilisation if report.metrics.mfu is not None and utilisation else None,
        binds=_largest(losses),
        binds_points=max((row.mfu_points for row in losses), default=0.0),
        binds_busy=_largest(busy),
        report=place,
    )


def _largest(rows: Sequence[LedgerRow]) -> str:
    worst = max(rows, key=lambda row: row.time_ns, default=None)
    return f"{worst.wall} / {worst.cause}" if worst else ""


def measure_of(report: Report, row: SweepRow) -> float | None:
    """What a row is ranked by: MFU of steps; of a window without steps, MFU while busy; where unknown, samples a second."""
    mfu = row.mfu if report.window.step_time_ns.mean else row.busy_mfu
    return row.per_second if mfu is None else mfu


def _next(ranked: Sequence[SweepRow], measures: Sequence[float]) -> str | None:
    """Where one setting varies: the next value beyond the last if it still rises there, else that more does not help."""
    varied = [name for name in ranked[0].settings if len({row.settings.get(name) for row in ranked}) == len(ranked)]
    if len(varied) != 1 or any(varied[0] not in row.settings for row in ranked):
        return None
    name = varied[0]
    along = sorted(zip(ranked, measures, strict=True), key=lambda pair: pair[0].settings[name])
    (before, rate_before), (last, rate_last) = along[-2:]
    if ranked[0] is not last:
        return f"{name} {ranked[0].settings[name]:g} is the best of these: more does not help"
    if rate_before and rate_last > STILL_RISING * rate_before:
        rise = f"it still rose by {rate_last / rate_before - 1:.0%}"
        return f"{name} {2 * last.settings[name]:g}: from {before.settings[name]:g} to {last.settings[name]:g} {rise}"
    return f"{name} {last.settings[name]:g} is the best, and it hardly rises any more"
