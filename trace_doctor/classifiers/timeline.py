"""The sweep: who holds each nanosecond of one GPU (ATTRIBUTION section 3).

::

    tensor          |--A--|
    other compute      |----B----|
    communication    |----------C-----------|
    copy                             |---D-----|
    held by          |--A--|--B--|----C-----|-D|   gap
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from trace_doctor.classifiers.intervals import alone, cut, edges, outside, top_class

TENSOR, COMPUTE, COMMUNICATION, COPY, IDLE = range(5)
CLASSES = 4


class Timeline(NamedTuple):
    """One GPU's window."""

    pieces: pl.DataFrame
    """The activities cut to the spans, with `class`, `exclusive_ns` (what the sweep charges to it), `length_ns`, `visible_ns` (its time
    under no higher class), `overlapped_ns` (its time under a higher class) and `part` (share of the activity inside)."""
    gaps: pl.DataFrame
    """start_ns, end_ns: when nothing ran."""
    held_ns: tuple[int, int, int, int, int]
    """Nanoseconds held by each class and by nobody; they sum to the window."""
    communication_ns: int
    """Union of the communication kernels, overlapped or not."""


def activity_class() -> pl.Expr:
    """Class of an activity in the sweep."""
    return (
        pl.when(pl.col("kind") == "communication")
        .then(COMMUNICATION)
        .when(pl.col("kind").is_in(["copy", "set"]))
        .then(COPY)
        .when(pl.col("tensor"))
        .then(TENSOR)
        .otherwise(COMPUTE)
        .cast(pl.Int32)
        .alias("class")
    )


def sweep(activities: pl.DataFrame, spans: pl.DataFrame) -> Timeline:
    """Account for one GPU's `spans` (start_ns, end_ns, number; disjoint, sorted)."""
    whole = activities.with_columns(activity_class(), end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    pieces = cut(whole, spans, keep=["number"])
    is_alone = alone(pieces)
    grid = edges(pieces.select("start_ns", "end_ns", "class").filter(~is_alone), CLASSES)
    grid = grid.with_columns(top=top_class(CLASSES))
    pieces = pieces.with_columns(_part(), length_ns=pl.col("end_ns") - pl.col("start_ns"))
    pieces = pieces.hstack(_held(grid, pieces["length_ns"], (~is_alone).arg_true())).with_columns(
        overlapped_ns=pl.col("length_ns") - pl.col("visible_ns").round().cast(pl.Int64),
    )
    single = pieces.select("length_ns", top="class").filter(is_alone)
    both = pl.concat([single, grid.select("length_ns", "top")])
    held = [int(both.filter(pl.col("top") == c)["length_ns"].sum()) for c in range(CLASSES)]
    window_ns = int((spans["end_ns"] - spans["start_ns"]).sum())
    hidden = grid.filter((pl.col("top") < COMMUNICATION) & (pl.col(f"open_{COMMUNICATION}") > 0))
    return Timeline(
        pieces=pieces,
        gaps=outside(pieces, spans),
        held_ns=(*held, window_ns - sum(held)),  # type: ignore[arg-type]
        communication_ns=held[COMMUNICATION] + int(hidden["length_ns"].sum()),
    )


def by_activity(pieces: pl.DataFrame) -> pl.DataFrame:
    """One row an activity: what a step border cut in two is one kernel again, with the sums of its parts.

    `pieces`: in the order of the activities, as `sweep` gives them.
    """
    same = pl.col("activity") == pl.col("activity").shift(1)
    is_cut = pieces.select((same | same.shift(-1)).fill_null(value=False)).to_series()
    if not is_cut.any():
        return pieces
    sums = ["length_ns", "exclusive_ns", "visible_ns", "overlapped_ns", "part"]
    first = [name for name in pieces.columns if name not in (*sums, "activity", "end_ns")]
    mended = (
        pieces.filter(is_cut)
        .group_by("activity", maintain_order=True)
        .agg(pl.col(first).first(), pl.col("end_ns").last(), pl.col(sums).sum())
    )
    return pl.concat([pieces.filter(~is_cut), mended.select(pieces.columns)]).sort("activity")


def _part() -> pl.Expr:
    """Share of the activity's duration inside the piece; 1 for an activity without length."""
    length = pl.col("end_ns") - pl.col("start_ns")
    return pl.when(pl.col("duration_ns") > 0).then(length / pl.col("duration_ns")).otherwise(1.0).alias("part")


def _held(grid: pl.DataFrame, length_ns: pl.Series, places: pl.Series) -> list[pl.Series]:
    """`exclusive_ns` and `visible_ns` of each piece: all of its length where it ran alone, as most do.

    Else differences of cumulative sums at its two edges. `grid`: edges of the others, which have these `places` among the pieces.
    """
    found = [length_ns.cast(pl.Float64).alias(name) for name in ("exclusive_ns", "visible_ns")]
    for c in range(CLASSES):
        mine = pl.when(pl.col("top") == c).then("length_ns").otherwise(0)
        split = mine / pl.max_horizontal(f"open_{c}", 1)
        sums = grid.select(
            "row", "class", "is_start", exclusive_ns=split.cum_sum() - split, visible_ns=mine.cum_sum() - mine
        ).filter(pl.col("class") == c)
        start, end = sums.filter("is_start").sort("row"), sums.filter(~pl.col("is_start")).sort("row")
        for values in found:
            values.scatter(places.gather(start["row"]), (end[values.name] - start[values.name]).cast(pl.Float64))
    return found
