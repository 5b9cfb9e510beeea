"""Interval algebra on frames with `start_ns` and `end_ns`: cutting one set by another, and who is open when.

Everything here is a sort and a cumulative sum, O(n log n).
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from trace_doctor.loaders import sparing


def cut(intervals: pl.DataFrame, spans: pl.DataFrame, *, keep: Sequence[str] = ()) -> pl.DataFrame:
    """The parts of `intervals` inside `spans`.

    ::

        intervals   |-----a-----|   |--b--|
        spans          |---0---||---1---|
        result         |---a---||a| |-b-|

    `spans` are disjoint and sorted. An interval that lies in several spans gives one row a span; the columns of `intervals` stay,
    `keep` names columns of `spans` that are added. An interval without length belongs to the span that holds its start.
    """
    spans = spans.select("start_ns", "end_ns", *keep)
    starts, ends = spans["start_ns"], spans["end_ns"]
    first = ends.search_sorted(intervals["start_ns"], side="right")
    # an empty interval at a span's start is inside, though no ns of it is
    after = pl.DataFrame(
        {
            "by_end": starts.search_sorted(intervals["end_ns"], side="left"),
            "by_start": starts.search_sorted(intervals["start_ns"], side="right"),
        }
    ).select(pl.max_horizontal("by_end", "by_start"))
    pairs = pl.DataFrame({"first": first, "after": after.to_series()})
    inside = pl.col("first") < pl.col("after")
    if pairs.select((pl.col("after") <= pl.col("first") + 1).all()).item():  # the usual case: none lies in two
        is_inside = pairs.select(inside).to_series()
        rows, chosen = sparing.keep(intervals, is_inside), spans[first.filter(is_inside)]
    else:
        pairs = (
            pairs.with_row_index("row")
            .filter(inside)
            .select("row", span=pl.int_ranges("first", "after", dtype=pl.UInt32))
            .explode("span", empty_as_null=False)
        )
        rows, chosen = intervals[pairs["row"]], spans[pairs["span"]]
    return rows.with_columns(
        *(chosen[name] for name in keep),
        start_ns=rows.select(pl.max_horizontal("start_ns", chosen["start_ns"])).to_series(),
        end_ns=rows.select(pl.min_horizontal("end_ns", chosen["end_ns"])).to_series(),
    )


def edges(intervals: pl.DataFrame, classes: int) -> pl.DataFrame:
    """Elementary intervals of `intervals` and how many of each class are open in them.

    `intervals`: start_ns, end_ns, class (0 .. classes-1). Result, sorted by time: `at_ns`, `length_ns` to the next edge,
    `open_0` .. `open_{classes-1}`, and which interval (`row`) begins or ends there (`is_start`).
    """
    numbered = intervals.select("start_ns", "end_ns", "class").with_row_index("row")
    both = pl.concat(
        [
            numbered.select("row", "class", at_ns="start_ns", is_start=pl.lit(value=True), delta=pl.lit(1, pl.Int32)),
            numbered.select("row", "class", at_ns="end_ns", is_start=pl.lit(value=False), delta=pl.lit(-1, pl.Int32)),
        ]
    ).sort("at_ns")
    return both.select(
        "row",
        "class",
        "at_ns",
        "is_start",
        length_ns=(pl.col("at_ns").shift(-1) - pl.col("at_ns")).fill_null(0),
        **{
            f"open_{c}": pl.when(pl.col("class") == c).then("delta").otherwise(0).cum_sum().cast(pl.Int32)
            for c in range(classes)
        },
    )


def top_class(classes: int) -> pl.Expr:
    """The lowest class number that is open; `classes` where none is."""
    expression = pl.lit(classes, pl.Int32)
    for c in reversed(range(classes)):
        expression = pl.when(pl.col(f"open_{c}") > 0).then(pl.lit(c, pl.Int32)).otherwise(expression)
    return expression


def union(intervals: pl.DataFrame) -> pl.DataFrame:
    """Disjoint, sorted intervals (start_ns, end_ns) that cover the same time; touching ones are merged."""
    ordered = sparing.in_order(intervals.select("start_ns", "end_ns"), "start_ns")
    reach = pl.col("end_ns").cum_max()
    begins = ordered.select((pl.col("start_ns") > reach.shift(1)).fill_null(value=True)).to_series()
    ends = begins.shift(-1, fill_value=True)
    return pl.DataFrame(
        {"start_ns": ordered["start_ns"].filter(begins), "end_ns": ordered.select(reach).to_series().filter(ends)}
    )


def outside(intervals: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Maximal stretches (start_ns, end_ns; in order) of `spans` without any of `intervals`, which lie inside them."""
    lasting, whole = intervals.filter(pl.col("start_ns") < pl.col("end_ns")), union(spans)
    busy = union(lasting)
    return pl.DataFrame(
        {
            "start_ns": pl.concat([whole["start_ns"], busy["end_ns"]]).sort(),
            "end_ns": pl.concat([busy["start_ns"], whole["end_ns"]]).sort(),
        }
    ).filter(pl.col("start_ns") < pl.col("end_ns"))


def alone(intervals: pl.DataFrame) -> pl.Series:
    """Whether each of `intervals` shares no time with another."""
    ordered = sparing.in_order(intervals.select("start_ns", "end_ns").with_row_index("row"), "start_ns")
    begins = (pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1)).fill_null(value=True)
    ends = (pl.col("end_ns") <= pl.col("start_ns").shift(-1)).fill_null(value=True)
    return sparing.in_order(ordered.select("row", alone=begins & ends), "row")["alone"]


def share_out(values: pl.DataFrame, total_ns: int) -> pl.Series:
    """`values` (one Float64 column) as integers that sum to `total_ns`, by largest remainder."""
    column = values.to_series()
    if column.is_empty():
        return column.cast(pl.Int64)
    floor = column.floor().cast(pl.Int64)
    missing = total_ns - int(floor.sum())
    order = (column - floor).rank("ordinal", descending=True).cast(pl.Int64)
    rounded = floor + (order <= missing).cast(pl.Int64)
    # a sum of floats may miss the integer by more than the remainders hold: the largest row takes it
    rest = total_ns - int(rounded.sum())
    return (
        rounded if rest == 0 else rounded + (column.abs().rank("ordinal", descending=True) == 1).cast(pl.Int64) * rest
    )
