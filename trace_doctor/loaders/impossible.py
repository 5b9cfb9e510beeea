"""Sets aside or clips records of GPU activity that cannot have happened, and says so.

Profilers write start and end as 0 where a buffer ran out (CUPTI), end stamps of 0, and on some parts durations of
seconds for kernels of milliseconds. Small overlaps on a stream are honest: programmatic dependent launch starts a
kernel before its predecessor ends, and branches of a CUDA graph share a stream's number.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from trace_doctor.trace import Warning

OVERRUN_NS = 1_000_000
"""An activity may run this far into the next one on its stream before its duration is doubted."""
OVERRUN_FACTOR = 20
"""... and must be this many times as long as the median of its stream's activities up to then."""
OVERRUN_STARTS = 8
"""... and cover the starts of this many later activities of its stream."""
_LATEST_NS = 1 << 62


def remove(activities: pl.DataFrame) -> tuple[pl.DataFrame, list[Warning]]:
    """The activities, in order of their start, without impossible ones, and a warning for each kind that was found.

    Needs device, stream, start_ns, duration_ns, name and correlation.
    """
    warnings: list[Warning] = []
    for step in (_without_times, _negative, _repeated, _overrun):
        activities, found = step(activities)
        warnings += found
    return activities, warnings


def _without_times(activities: pl.DataFrame) -> tuple[pl.DataFrame, list[Warning]]:
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("duration_ns")
    readable = start.is_between(-_LATEST_NS, _LATEST_NS) & pl.col("duration_ns").is_between(-_LATEST_NS, _LATEST_NS)
    timed = activities.filter(readable & (start > 0))
    span_ns, first_ns = timed.select((end.max() - start.min()), start.min()).row(0)
    far = (start <= 0) & (first_ns - start > span_ns) if timed.height else pl.lit(value=False)
    kept = activities.filter(readable & ~far)
    return kept, list(
        _warning(
            activities.height - kept.height,
            "impossible_timestamps",
            "without a usable timestamp (zero, negative or unreadable, far from all others) were set aside",
        )
    )


def _negative(activities: pl.DataFrame) -> tuple[pl.DataFrame, list[Warning]]:
    kept = activities.filter(pl.col("duration_ns") >= 0)
    return kept, list(
        _warning(activities.height - kept.height, "negative_durations", "with a negative duration were set aside")
    )


def _repeated(activities: pl.DataFrame) -> tuple[pl.DataFrame, list[Warning]]:
    what = ["device", "stream", "start_ns", "duration_ns", "name", "correlation"]
    kept = activities.unique(what, keep="first", maintain_order=True).sort("start_ns", maintain_order=True)
    return kept, list(
        _warning(activities.height - kept.height, "repeated_records", "that repeat another one exactly were counted once")
    )


def _overrun(activities: pl.DataFrame) -> tuple[pl.DataFrame, list[Warning]]:
    """Clips durations that a stream's order rules out; graph nodes, which share a correlation id, may run side by side."""
    stream, end = ["device", "stream"], pl.col("start_ns") + pl.col("duration_ns")
    later = pl.col("start_ns").shift(-OVERRUN_STARTS).over(stream)
    following = pl.col("start_ns").shift(-1).over(stream)
    doubtful = (
        (end - following > OVERRUN_NS)
        & (end > later)
        & (pl.col("duration_ns") > OVERRUN_FACTOR * pl.col("duration_ns").median().over(stream))
        & (pl.len().over("device", "correlation") == 1)
    )
    marked = activities.with_columns(doubtful=doubtful.fill_null(value=False), limit_ns=following - pl.col("start_ns"))
    doubted = marked.filter("doubtful")
    if doubted.is_empty():
        return activities, []
    worst = doubted.row(doubted["duration_ns"].arg_max() or 0, named=True)
    clipped = marked.with_columns(
        duration_ns=pl.when("doubtful").then(pl.min_horizontal("limit_ns", "duration_ns")).otherwise("duration_ns")
    ).drop("doubtful", "limit_ns")
    message = (
        f"{doubted.height} GPU activities with impossible durations, running through many later ones of their stream, were "
        f"clipped to the next one's start; the longest: {worst['name']} on stream {worst['stream']}, "
        f"{worst['duration_ns'] / 1e6:.1f} ms"
    )
    return clipped, [Warning("impossible_durations", message)]


def _warning(count: int, code: str, what: str) -> Iterator[Warning]:
    if count:
        yield Warning(code, f"{count} GPU activities {what}")
