"""The sweep against a count of every nanosecond by hand, and the interval algebra it stands on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.classifiers.intervals import alone, cut, outside, share_out, union
from trace_doctor.classifiers.timeline import COMMUNICATION, IDLE, activity_class, sweep

SCHEMA = {"activity": pl.Int64, "start_ns": pl.Int64, "duration_ns": pl.Int64, "kind": pl.String, "tensor": pl.Boolean}
KINDS = [("compute", True), ("compute", False), ("communication", False), ("copy", False), ("set", False)]
activities = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.sampled_from(KINDS)).map(lambda a: (a[0], a[1], *a[2])),
    max_size=12,
)
borders = st.lists(st.integers(0, 80), min_size=2, max_size=6, unique=True).map(sorted)


def frame(rows: list[tuple[int, int, str, bool]]) -> pl.DataFrame:
    return pl.DataFrame([(n, *row) for n, row in enumerate(rows)], schema=SCHEMA, orient="row").sort("start_ns")


def spans_between(marks: list[int]) -> pl.DataFrame:
    pairs = list(zip(marks[::2], marks[1::2], strict=False))
    return pl.DataFrame(
        [(start, end, n) for n, (start, end) in enumerate(pairs)],
        schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "number": pl.Int64},
        orient="row",
    )


@given(activities, borders)
def test_every_nanosecond_is_held_once(rows: list[tuple[int, int, str, bool]], marks: list[int]) -> None:
    spans = spans_between(marks)
    timeline = sweep(frame(rows), spans)
    held, exclusive, communication = by_hand(frame(rows), spans)
    assert held == list(timeline.held_ns)
    assert communication == timeline.communication_ns
    assert sum(timeline.held_ns) == (spans["end_ns"] - spans["start_ns"]).sum()
    assert (timeline.gaps["end_ns"] - timeline.gaps["start_ns"]).sum() == timeline.held_ns[IDLE]
    got = dict(timeline.pieces.group_by("activity").agg(pl.col("exclusive_ns").sum()).iter_rows())
    assert {n: round(t, 6) for n, t in exclusive.items()} == {n: round(t, 6) for n, t in got.items() if t > 1e-9}


def by_hand(acts: pl.DataFrame, spans: pl.DataFrame) -> tuple[list[int], Counter[int], int]:
    rows: list[dict[str, Any]] = acts.with_columns(activity_class()).to_dicts()
    held, exclusive, communication = [0] * 5, Counter[int](), 0
    for start, end in spans.select("start_ns", "end_ns").iter_rows():
        for at in range(start, end):
            running = [row for row in rows if row["start_ns"] <= at < row["start_ns"] + row["duration_ns"]]
            communication += any(row["class"] == COMMUNICATION for row in running)
            top = min((row["class"] for row in running), default=IDLE)
            held[top] += 1
            holders = [row["activity"] for row in running if row["class"] == top]
            exclusive.update({holder: 1 / len(holders) for holder in holders})  # type: ignore[arg-type]
    return held, exclusive, communication


def test_priorities_and_the_even_split() -> None:
    # tensor 0-10 and 5-15 | compute 8-30 | communication 20-50 | copy 40-70 | window 0-80
    rows = [
        (0, 10, "compute", True),
        (5, 10, "compute", True),
        (8, 22, "compute", False),
        (20, 30, "communication", False),
        (40, 30, "copy", False),
    ]
    timeline = sweep(frame(rows), spans_between([0, 80]))
    assert timeline.held_ns == (15, 15, 20, 20, 10)
    assert timeline.communication_ns == 30
    assert timeline.pieces.sort("activity")["exclusive_ns"].to_list() == [7.5, 7.5, 15.0, 20.0, 20.0]
    assert timeline.pieces.sort("activity")["overlapped_ns"].to_list() == [0, 0, 7, 10, 10]


def test_a_zero_length_kernel_breaks_no_gap() -> None:
    timeline = sweep(frame([(10, 0, "compute", False)]), spans_between([0, 20]))
    assert timeline.gaps.rows() == [(0, 20)]
    assert timeline.pieces["part"].to_list() == [1.0]


def test_cut_gives_a_row_a_span() -> None:
    intervals = pl.DataFrame({"start_ns": [0, 5, 10], "end_ns": [25, 5, 10], "name": ["long", "point", "border"]})
    spans = pl.DataFrame({"start_ns": [0, 10], "end_ns": [10, 20], "number": [1, 2]})
    assert cut(intervals, spans, keep=["number"]).rows() == [
        (0, 10, "long", 1),
        (10, 20, "long", 2),
        (5, 5, "point", 1),
        (10, 10, "border", 2),
    ]


def test_union_merges_what_touches() -> None:
    intervals = pl.DataFrame({"start_ns": [5, 0, 20, 10], "end_ns": [10, 7, 25, 12]})
    assert union(intervals).rows() == [(0, 12), (20, 25)]


def intervals(*rows: tuple[int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")


def test_outside_gives_what_is_left_of_the_spans() -> None:
    spans = intervals((0, 10), (10, 20), (30, 40))
    busy = intervals((2, 5), (4, 6), (5, 5), (7, 7), (12, 20))
    assert outside(busy, spans).rows() == [(0, 2), (6, 12), (30, 40)]
    assert outside(busy.clear(), spans).rows() == [(0, 20), (30, 40)]


def test_alone_is_what_shares_no_time() -> None:
    rows = intervals((8, 9), (0, 4), (4, 8), (10, 20), (11, 12), (21, 21))
    assert alone(rows).to_list() == [True, True, True, False, False, True]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_largest_remainder_keeps_the_sum(values: list[float]) -> None:
    total = round(sum(values))
    shares = share_out(pl.DataFrame({"time_ns": values}, schema={"time_ns": pl.Float64}), total)
    assert shares.sum() == total
    assert all(abs(share - value) <= 1 for share, value in zip(shares, values, strict=True))


def test_largest_remainder_rounds_up_the_largest() -> None:
    values = pl.DataFrame({"time_ns": [1.5, 2.3, 3.2]})
    assert share_out(values, 7).to_list() == [2, 2, 3]
