"""Sets aside or clips records of GPU activity that cannot have happened, and says so.

Profilers write start and end as 0 where a buffer ran out (CUPTI), end stamps of 0, and on some parts durations of
seconds for kernels of milliseconds. Small overlaps on a stream are honest: programmatic dependent launch starts a
kernel before its predecessor ends, and branches of a CUDA graph share a stream's number.
"""

from __future__ import annotations

import polars as pl

from trace_doctor.loaders import sparing
from trace_doctor.trace import Warning

OVERRUN_NS = 1_000_000
"""An activity may run this far into the next one on its stream before its duration is doubted."""
OVERRUN_FACTOR = 20
"""... if it is this many times as long as the median of its name, or of its stream where that name is rare,"""
OVERRUN_NAMESAKES = 3
"""(of so many at least)"""
OVERRUN_STARTS = 8
"""... and covers the starts of this many later activities of its stream."""
NEAR_NS = 100_000_000
"""A start at or below 0 is believed where the others begin no later than this."""
LATEST_NS = 1 << 62
"""A time beyond this is no time; sums and differences of times stay inside 64 bits."""


def remove(activities: pl.DataFrame) -> tuple[pl.DataFrame, list[Warning]]:
    """The activities in order of their start, without impossible ones, and a warning for each kind that was found.

    Needs device, stream, start_ns, duration_ns, name and correlation.
    """
    warnings: list[Warning] = []
    for code, sentence, step in (
        (
            "impossible_timestamps",
            "GPU activities without a usable timestamp (zero, negative or unreadable) were set aside",
            _timed,
        ),
        ("negative_durations", "GPU activities with negative durations were set aside", _forward),
        ("repeated_records", "GPU activities that repeat another one exactly were left out", _once),
    ):
        kept = step(activities)
        if kept.height < activities.height:
            warnings.append(Warning(code, f"{sentence}: {activities.height - kept.height}"))
        activities = kept
    activities, found = _clipped(activities)
    return activities, warnings + found


def _timed(activities: pl.DataFrame) -> pl.DataFrame:
    """Those with times, in their order; a start at or below 0 counts where it is no farther from the others than they span."""
    times = (pl.col(name).is_between(-LATEST_NS, LATEST_NS) for name in ("start_ns", "duration_ns"))
    readable = sparing.in_order(sparing.keep(activities, *times), "start_ns")
    begun = readable["start_ns"].filter(readable["start_ns"] > 0)
    if begun.is_empty():
        return readable
    first_ns, span_ns = int(begun[0]), int(begun[-1]) - int(begun[0])
    return sparing.keep(readable, (pl.col("start_ns") > 0) | (first_ns - pl.col("start_ns") <= max(span_ns, NEAR_NS)))


def _forward(activities: pl.DataFrame) -> pl.DataFrame:
    return sparing.keep(activities, pl.col("duration_ns") >= 0)


def _once(activities: pl.DataFrame) -> pl.DataFrame:
    what = ["start_ns", "device", "stream", "duration_ns", "name", "correlation"]
    start = activities["start_ns"]
    is_simultaneous = ((start == start.shift(1)) | (start == start.shift(-1))).fill_null(value=False)
    if not is_simultaneous.any():
        return activities
    simultaneous = activities.select(what).with_row_index("row").filter(is_simultaneous)
    repeated = simultaneous.filter(~pl.struct(what).is_first_distinct())["row"]
    return (
        activities.with_row_index("row").filter(~pl.col("row").is_in(repeated.implode())).drop("row")
        if len(repeated)
        else activities
    )


def _clipped(activities: pl.DataFrame) -> tuple[pl.DataFrame, list[Warning]]:
    """Clips durations that a stream's order rules out; graph nodes, which share a correlation id, may run side by side."""
    overrun = _overrun(activities)
    if overrun.is_empty():
        return activities, []
    name, stream, longest_ns = overrun.sort("duration_ns").select("name", "stream", "duration_ns").row(-1)
    message = (
        "GPU activities with impossible durations, running through many later ones of their stream, were clipped to the "
        f"next one's start: {overrun.height}; the longest: {name} on stream {stream}, {longest_ns / 1e6:.1f} ms"
    )
    clipped = activities["duration_ns"].clone().scatter(overrun["row"], overrun["limit_ns"])
    return activities.with_columns(clipped), [Warning("impossible_durations", message)]


def _overrun(activities: pl.DataFrame) -> pl.DataFrame:
    """Those that outlast many later starts on their stream, though nothing lets them run beside these, with their limit."""
    stream, start, end = ["device", "stream"], pl.col("start_ns"), pl.col("start_ns") + pl.col("duration_ns")
    ordered = activities.select(*stream, "start_ns", "duration_ns").with_row_index("row")
    if ordered.select((pl.col(name) != pl.col(name).first()).any() for name in stream).row(0) != (False, False):
        ordered = ordered.sort(stream, maintain_order=True)
    is_followed = pl.all_horizontal(pl.col(name) == pl.col(name).shift(-OVERRUN_STARTS) for name in stream)
    far = ordered.with_columns(limit_ns=start.shift(-1) - start).filter(
        is_followed & (end > start.shift(-OVERRUN_STARTS)) & (end - start.shift(-1) > OVERRUN_NS)
    )
    far = far.with_columns(activities[name].gather(far["row"]) for name in ("name", "correlation"))
    if far.is_empty():
        return far
    usual = activities.group_by(stream).agg(usual_ns=pl.col("duration_ns").median())
    namesakes = activities.group_by("device", "name").agg(namesakes_ns=pl.col("duration_ns").median(), count=pl.len())
    shared = activities.group_by("device", "correlation").len().filter(pl.col("len") > 1)
    usual_ns = pl.when(pl.col("count") >= OVERRUN_NAMESAKES).then("namesakes_ns").otherwise("usual_ns")
    return (
        far.join(usual, on=stream)
        .join(namesakes, on=["device", "name"])
        .join(shared, on=["device", "correlation"], how="anti")
        .filter(pl.col("duration_ns") > OVERRUN_FACTOR * usual_ns)
    )
