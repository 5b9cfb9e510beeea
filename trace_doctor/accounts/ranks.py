"""A rank that works longer than the others, held against the median rank, cause by cause.

Ranks of one job take equally long steps, for they wait for each other: a slow one is the one that waits least. So what is compared is
a step without its communication.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trace_doctor.report import WALLS, Gpu, LedgerRow, StepDifference, Wall

ENOUGH_RANKS = 3


def explained(gpus: Sequence[Gpu], *, slow_ratio: float) -> list[Gpu]:
    """The GPUs, those whose own work takes over `slow_ratio` of the median GPU's with their ledger against it, per step."""
    if len(gpus) < ENOUGH_RANKS:
        return list(gpus)
    own_ns = [_own_ns(gpu) for gpu in gpus]
    median = sorted(range(len(gpus)), key=lambda place: (own_ns[place], place))[(len(gpus) - 1) // 2]
    return [
        msgspec.structs.replace(gpu, median_gpu=median, differences=_differences(gpu, gpus[median]))
        if own > slow_ratio * own_ns[median]
        else gpu
        for gpu, own in zip(gpus, own_ns, strict=True)
    ]


def _own_ns(gpu: Gpu) -> float:
    """What a step takes without waiting for others."""
    communication = sum(row.time_ns for row in gpu.ledger if row.wall == "communication")
    return (gpu.window.duration_ns - communication) / _steps(gpu)


def _steps(gpu: Gpu) -> int:
    mean = gpu.step_time_ns.mean
    return max(1, round(gpu.window.duration_ns / mean)) if mean else 1


def _differences(slow: Gpu, median: Gpu) -> list[StepDifference]:
    here, usual = _by_row(slow), _by_row(median)
    rows = [
        StepDifference(
            wall=wall,
            cause=cause,
            time_ns=round(here[wall, cause].time_ns / _steps(slow)) if (wall, cause) in here else 0,
            median_ns=round(usual[wall, cause].time_ns / _steps(median)) if (wall, cause) in usual else 0,
            name=_name(here.get((wall, cause)) or usual.get((wall, cause))),
        )
        for wall, cause in sorted(here.keys() | usual.keys(), key=lambda row: (WALLS.index(row[0]), row[1]))
    ]
    changed = [row for row in rows if row.time_ns != row.median_ns]
    return sorted(changed, key=lambda row: -abs(row.time_ns - row.median_ns))


def _by_row(gpu: Gpu) -> dict[tuple[Wall, str], LedgerRow]:
    return {(row.wall, row.cause): row for row in gpu.ledger}


def _name(row: LedgerRow | None) -> str | None:
    return row.top[0].name if row and row.top else None
