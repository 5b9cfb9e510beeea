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

from trace_doctor.classifiers.intervals import cut, edges, top_class

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
    marked = pl.concat([pieces.select("start_ns", "end_ns", "class"), _background(spans)])
    grid = edges(marked, CLASSES + 1).with_columns(top=top_class(CLASSES + 1))
    pieces = pieces.hstack(_held(grid, len(pieces))).with_columns(
        _part(),
        length_ns=pl.col("end_ns") - pl.col("start_ns"),
        overlapped_ns=pl.col("end_ns") - pl.col("start_ns") - pl.col("visible_ns").round().cast(pl.Int64),
    )
    held = dict(grid.group_by("top").agg(pl.col("length_ns").sum()).iter_rows())
    communication_ns = grid.filter(pl.col(f"open_{COMMUNICATION}") > 0)["length_ns"].sum()
    return Timeline(
        pieces=pieces,
        gaps=_gaps(grid),
        held_ns=tuple(int(held.get(c, 0)) for c in range(CLASSES + 1)),  # type: ignore[arg-type]
        communication_ns=int(communication_ns),
    )


def by_activity(pieces: pl.DataFrame) -> pl.DataFrame:
    """One row an activity: what a step border cut in two is one kernel again, with the sums of its parts."""
    if not pieces["activity"].is_duplicated().any():
        return pieces
    sums = ["length_ns", "exclusive_ns", "visible_ns", "overlapped_ns", "part"]
    first = [name for name in pieces.columns if name not in (*sums, "activity", "end_ns")]
    return pieces.group_by("activity", maintain_order=True).agg(
        pl.col(first).first(), pl.col("end_ns").last(), pl.col(sums).sum()
    )


def _background(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans as intervals of the lowest class: where only they are open, the GPU is idle."""
    return spans.select("start_ns", "end_ns", pl.lit(IDLE, pl.Int32).alias("class"))


def _part() -> pl.Expr:
    """Share of the activity's duration inside the piece; 1 for an activity without length."""
    length = pl.col("end_ns") - pl.col("start_ns")
    return pl.when(pl.col("duration_ns") > 0).then(length / pl.col("duration_ns")).otherwise(1.0).alias("part")


def _held(grid: pl.DataFrame, pieces: int) -> list[pl.Series]:
    """`exclusive_ns` and `visible_ns` of each piece: differences of cumulative sums at its two edges."""
    sums = []
    for c in range(CLASSES):
        mine = pl.when(pl.col("top") == c).then("length_ns").otherwise(0)
        split = mine / pl.max_horizontal(f"open_{c}", 1)
        sums += [
            (split.cum_sum() - split).alias(f"exclusive_{c}"),
            (mine.cum_sum() - mine).alias(f"visible_{c}"),
        ]
    at = grid.select("row", "class", "is_start", *sums).filter(pl.col("row") < pieces)
    own = at.select(
        "row",
        "is_start",
        exclusive_ns=_of_class("exclusive"),
        visible_ns=_of_class("visible").cast(pl.Float64),
    )
    start = own.filter("is_start").sort("row")
    end = own.filter(~pl.col("is_start")).sort("row")
    return [(end[name] - start[name]).alias(name) for name in ("exclusive_ns", "visible_ns")]


def _of_class(prefix: str) -> pl.Expr:
    expression = pl.lit(None)
    for c in range(CLASSES):
        expression = pl.when(pl.col("class") == c).then(f"{prefix}_{c}").otherwise(expression)
    return expression


def _gaps(grid: pl.DataFrame) -> pl.DataFrame:
    """Maximal stretches inside the spans in which nothing ran."""
    idle = grid.filter((pl.col("top") == IDLE) & (pl.col("length_ns") > 0)).select(
        start_ns="at_ns", end_ns=pl.col("at_ns") + pl.col("length_ns")
    )
    broken = (pl.col("start_ns") != pl.col("end_ns").shift(1)).fill_null(value=True)
    return (
        idle.with_columns(_gap=broken.cum_sum())
        .group_by("_gap", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").last())
        .drop("_gap")
    )
