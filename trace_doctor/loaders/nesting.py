"""Who encloses whom on a host thread, found for all ranges at once."""

from __future__ import annotations

import polars as pl

from trace_doctor.loaders import sparing

_ROUNDING_NS = 1_000
"""Files in whole microseconds let a child outlast its parent by up to this much."""


def nest(ops: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """The innermost op around every op and around the start of every call: rows of `ops`, null where there is none.

    Both frames need `thread`, `start_ns` and `duration_ns`. An op that starts with another and is longer encloses it, and an
    op encloses a call that starts with it. A range ends before what starts at its end. An op that outlasts the op it started
    in is not its child.
    """
    if ops.is_empty():
        return pl.Series("parent", [], pl.UInt32), pl.repeat(None, len(calls), dtype=pl.UInt32, eager=True).rename("op")
    ordered = _ordered(ops, calls)
    pointer = _climb_to_lasting(ordered, _open_at_start(ordered))
    found = ordered["row"].clone().scatter(ordered["row"], ordered["row"].gather(pointer))
    return found.head(len(ops)).rename("parent"), found.tail(len(calls)).rename("op")


def _ordered(ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Ops and calls by thread and start, ops before calls and longer ops before shorter ones: row, thread, start_ns, end_ns, is_call."""
    ordered = pl.concat(frame.select("thread", "start_ns") for frame in (ops, calls)).with_row_index("row")
    # both come in the order of their start: to merge them costs less than to sort by all at once
    for column in ("start_ns", "thread"):
        ordered = sparing.in_order(ordered, column)
    end_ns = pl.concat(frame.select(end_ns=pl.col("start_ns") + pl.col("duration_ns")) for frame in (ops, calls))
    ordered = ordered.with_columns(end_ns["end_ns"].gather(ordered["row"]), is_call=pl.col("row") >= len(ops))
    thread, start, end, is_call = (pl.col(name) for name in ("thread", "start_ns", "end_ns", "is_call"))
    is_longer = (start == start.shift(1)) & (thread == thread.shift(1)) & (end > end.shift(1)) & ~is_call
    if not ordered.select(is_longer.any()).item():
        return ordered
    return ordered.sort(thread, start, is_call, -end, maintain_order=True)


def _open_at_start(ordered: pl.DataFrame) -> pl.Series:
    """For every range the one that started last before it and is still open: positions in `ordered`, null for none.

    Pointer doubling: a pointer begins at the range before. Where that has ended, so has all between it and its own pointer, and
    the pointer takes that one over, every step jumping about twice as far. A range that starts after all before it have ended
    has none.
    """
    start, end, is_op = ordered["start_ns"], ordered["end_ns"], ~ordered["is_call"]
    position = pl.int_range(len(ordered), dtype=pl.UInt32, eager=True)
    # a call holds nothing
    latest = pl.when("is_call").then("start_ns").otherwise("end_ns").cum_max().shift(1).over("thread")
    is_alone = ordered.select((latest < pl.col("start_ns")).fill_null(value=True)).to_series()
    pointer = position.shift(1).set(is_alone, None)
    searching = position.filter(pointer.is_not_null())
    while len(searching):
        at = pointer.gather(searching)
        # the second case: ranges without length at the same time enclose one another in the order of the file
        is_open = is_op.gather(at) & (
            (end.gather(at) > start.gather(searching)) | (start.gather(at) == end.gather(searching))
        )
        searching = searching.filter(~is_open)
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
