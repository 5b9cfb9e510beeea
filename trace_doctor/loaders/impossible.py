"""Sets aside or clips records of GPU activity that cannot have happened, and says so.

Profilers write start and end as 0 where a buffer ran out (CUPTI), end stamps of 0, and on some parts durations of
seconds for kernels of milliseconds. Small overlaps on a stream are honest: programmatic dependent launch starts a
kernel before its predecessor ends, and branches of a CUDA graph share a stream's number.
"""

from __future__ import annotations

import polars as pl

from trace_doctor.trace import Warning

OVERRUN_NS = 1_000_000
"""An activity may run this far into the next one on its stream before its duration is doubted."""
OVERRUN_FACTOR = 20
"""... and must be this many times as long as the median of its stream's activities up to then."""
OVERRUN_STARTS = 8
"""... and cover the starts of this many later activities of its stream."""
NEAR_NS = 100_000_000
"""A start at or below 0 is believed where the others begin no later than this."""
_LATEST_NS = 1 << 62


def remove(activities: pl.DataFrame) -> tuple[pl.DataFrame, list[Warning]]:
    """The activities in order of their start, without impossible ones, and a warning for each kind that was found.

    Needs device, stream, start_ns, duration_ns, name and correlation.
    """
    warnings: list[Warning] = []
    for code, sentence, step in (
        ("impossible_timestamps", "without a usable timestamp (zero, negative or unreadable) were set aside", _timed),
        ("negative_durations", "with negative durations were set aside", _forward),
        ("repeated_records", "that repeat another one exactly were counted once", _once),
    ):
        kept = step(activities)
        if kept.height < activities.height:
            warnings.append(Warning(code, f"{activities.height - kept.height} GPU activities {sentence}"))
        activities = kept
    activities, found = _clipped(activities.sort("start_ns", maintain_order=True))
    return activities, warnings + found


def _timed(activities: pl.DataFrame) -> pl.DataFrame:
    """Those with times; a start at or below 0 counts where it is no farther from the others than they span."""
    times = (pl.col(name).is_between(-_LATEST_NS, _LATEST_NS) for name in ("start_ns", "duration_ns"))
    readable = activities.filter(*times)
    begun = readable.filter(pl.col("start_ns") > 0)["start_ns"]
    if begun.is_empty():
        return readable
    first_ns, span_ns = int(begun.min()), int(begun.max()) - int(begun.min())  # type: ignore[arg-type]
    return readable.filter((pl.col("start_ns") > 0) | (first_ns - pl.col("start_ns") <= max(span_ns, NEAR_NS)))


def _forward(activities: pl.DataFrame) -> pl.DataFrame:
    return activities.filter(pl.col("duration_ns") >= 0)


def _once(activities: pl.DataFrame) -> pl.DataFrame:
    what = ["device", "stream", "start_ns", "duration_ns", "name", "correlation"]
    return activities.unique(what, keep="first", maintain_order=True)


def _clipped(activities: pl.DataFrame) -> tuple[pl.DataFrame, list[Warning]]:
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
