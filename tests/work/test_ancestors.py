"""The nearest enclosing op, against walking up one by one."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.work.ancestors import at, named, nearest


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int | None], list[bool]]:
    size = draw(st.integers(0, 60))
    parents = [draw(st.one_of(st.none(), st.integers(0, row - 1))) if row else None for row in range(size)]
    return parents, draw(st.lists(st.booleans(), min_size=size, max_size=size))


def walked(parents: list[int | None], holds: list[bool], row: int | None) -> int | None:
    while row is not None and not holds[row]:
        row = parents[row]
    return row


@given(trees())
def test_nearest_is_what_walking_up_finds(tree: tuple[list[int | None], list[bool]]) -> None:
    parents, holds = tree
    found = nearest(pl.Series(parents, dtype=pl.UInt32), pl.Series(holds, dtype=pl.Boolean))
    assert found.to_list() == [walked(parents, holds, row) for row in range(len(parents))]


def test_nearest_climbs_deep_stacks() -> None:
    parents = pl.Series([None, *range(299)], dtype=pl.UInt32)
    found = nearest(parents, pl.Series([True, *[False] * 299]))
    assert found.unique().to_list() == [0]


def test_at_gives_null_for_null() -> None:
    assert at(pl.Series(["a", "b"]), pl.Series([1, None, 0], dtype=pl.UInt32)).to_list() == ["b", None, "a"]
    assert at(pl.Series([], dtype=pl.String), pl.Series([None], dtype=pl.UInt32)).to_list() == [None]


def test_names_match_by_pattern() -> None:
    names = pl.Series(["aten::mm", "MmBackward0", None, "aten::mm"], dtype=pl.Categorical)
    assert named(names, r"Backward\d*$").to_list() == [False, True, False, False]
