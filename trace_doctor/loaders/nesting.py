"""Who encloses whom on a host thread, found for all ranges at once."""

from __future__ import annotations

import polars as pl

_ROUNDING_NS = 1_000
"""Files in whole microseconds let a child outlast its parent by up to this much."""


def nest(ops: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """The innermost op around every op and around the start of every call: rows of `ops`, null where there is none.

    Both frames need `thread`, `start_ns` and `duration_ns`. An op that starts with another and is longer encloses it, and an
    op encloses a call that starts with it. A range ends before what starts at its end. An op that outlasts the op it started
    in is not its child.
    """
    ranges = pl.concat(
        [
            ops.select("thread", "start_ns", "duration_ns", is_call=pl.lit(value=False)),
            calls.select("thread", "start_ns", "duration_ns", is_call=pl.lit(value=True)),
        ]
    ).with_row_index("row")
    ordered = ranges.sort("thread", "start_ns", "is_call", -pl.col("duration_ns"), maintain_order=True).select(
        "row",
        "thread",
        "start_ns",
        "is_call",
        end_ns=pl.col("start_ns") + pl.col("duration_ns"),
        # nothing ends after a call's "reach", so a call is never found to be open
        reach_ns=pl.when("is_call").then(None).otherwise(pl.col("start_ns") + pl.col("duration_ns")),
    )
    pointer = _climb_to_lasting(ordered, _open_at_start(ordered))
    found = ordered["row"].clone().scatter(ordered["row"], ordered["row"].gather(pointer))
    return found.head(len(ops)).rename("parent"), found.tail(len(calls)).rename("op")


def _open_at_start(ordered: pl.DataFrame) -> pl.Series:
    """For every range the one that started last before it and is still open: positions in `ordered`, null for none.

    Pointer doubling: a pointer begins at the range before. Where that has ended, so has all between it and its own pointer, and
    the pointer takes that one over, every step jumping about twice as far. A range that starts after all before it have ended
    has none.
    """
    start, end, reach = ordered["start_ns"], ordered["end_ns"], ordered["reach_ns"]
    position = pl.int_range(len(ordered), dtype=pl.UInt32, eager=True)
    latest = ordered.select(pl.col("reach_ns").cum_max().forward_fill().shift(1).over("thread")).to_series()
    pointer = position.shift(1).set((latest < start).fill_null(value=True), None)
    searching = position.filter(pointer.is_not_null())
    while len(searching):
        at = pointer.gather(searching)
        # the second case: ranges without length at the same time enclose one another in the order of the file
        is_open = (reach.gather(at) > start.gather(searching)) | (
            reach.is_not_null().gather(at) & (start.gather(at) == end.gather(searching))
        )
        searching = searching.filter(~is_open.fill_null(value=False))
        further = pointer.gather(pointer.gather(searching))
        pointer = pointer.scatter(searching, further)
        searching = searching.filter(further.is_not_null())
    return pointer


def _climb_to_lasting(ordered: pl.DataFrame, pointer: pl.Series) -> pl.Series:
    """Moves an op's pointer up to the first range that lasts as long as the op itself; calls need not end inside their op."""
    start, end = ordered["start_ns"], ordered["end_ns"]
    position = pl.int_range(len(ordered), dtype=pl.UInt32, eager=True)
    parent, climbing = pointer.clone(), position.filter(~ordered["is_call"] & pointer.is_not_null())
    while len(climbing):
        reach = end.gather(parent.gather(climbing))
        lasts = (reach + _ROUNDING_NS >= end.gather(climbing)) & (
            (reach > start.gather(climbing)) | (reach == end.gather(climbing))
        )
        climbing = climbing.filter(~lasts)
        higher = pointer.gather(parent.gather(climbing))
        parent = parent.scatter(climbing, higher)
        climbing = climbing.filter(higher.is_not_null())
    return parent
