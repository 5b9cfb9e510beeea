"""Filters and sorts that copy a frame only where they change it: most files are whole and in order."""

from __future__ import annotations

import polars as pl


def keep(frame: pl.DataFrame, *conditions: pl.Expr | pl.Series) -> pl.DataFrame:
    """The rows for which all conditions hold; the frame itself where they hold for all."""
    holds = frame.select(pl.all_horizontal(conditions).alias("holds")).to_series()
    return frame if holds.sum() == len(frame) else frame.filter(holds)


def in_order(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """The rows in the order of a column without nulls, equal ones as they were; the frame itself where it is in order."""
    return frame if frame[column].is_sorted() else frame.sort(column, maintain_order=True)


def stacked(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """One frame of parts with the same columns, which are taken out of the parts: no more than one is ever held twice."""
    names = parts[0].columns
    return pl.DataFrame([pl.concat([part.drop_in_place(name) for part in parts], rechunk=True) for name in names])
