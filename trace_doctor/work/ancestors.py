"""The tree of host ops: who encloses whom. Works on whole columns, a row of `ops` is an op."""

from __future__ import annotations

import polars as pl

_DOUBLINGS = 9  # finds ancestors up to 2 ** 9 levels above, far deeper than any recorded stack of ops


def nearest(parent: pl.Series, holds: pl.Series) -> pl.Series:
    """For every op the row of itself or of its closest ancestor for which `holds`, null where there is none.

    Pointer doubling: an op that holds points at itself, any other at its parent; following pointers of pointers doubles
    the distance each time.
    """
    rows = pl.int_range(len(parent), dtype=pl.UInt32, eager=True)
    pointer = rows.zip_with(holds.fill_null(value=False), parent.cast(pl.UInt32))
    for _ in range(_DOUBLINGS):
        further = pointer.gather(pointer)
        if further.equals(pointer):
            break
        pointer = further
    return pointer


def at(values: pl.Series, rows: pl.Series) -> pl.Series:
    """The values at these rows, null where the row is null."""
    return values.gather(rows) if len(values) else pl.Series([None] * len(rows), dtype=values.dtype)


def named(names: pl.Series, pattern: str) -> pl.Series:
    """Whether an op's name matches a regular expression; each distinct name is tried once."""
    distinct = names.unique().drop_nulls()
    matching = distinct.filter(distinct.cast(pl.String).str.contains(pattern))
    return is_one_of(names, matching.cast(pl.String).to_list())


def is_one_of(names: pl.Series, wanted: list[str]) -> pl.Series:
    """Whether a name (categorical) is one of these texts."""
    return names.is_in(pl.Series(wanted, dtype=pl.String).cast(names.dtype).implode()).fill_null(value=False)
