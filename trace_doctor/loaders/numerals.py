"""Exact integers from the numbers of a JSON text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import polars as pl

EXACT_US = float(1 << 42)
"""From this many microseconds on (50 days), a float64 times 1000 is no longer sure to round to the right nanosecond."""
_INT64 = 1 << 63
_MOST_US = (_INT64 - 1) // 1000
_NUMBER = re.compile(r"\s*[-+]?[\d.]+(?:[eE][-+]?\d+)?\s*")


def integers(values: Sequence[Any]) -> pl.Series:
    """Int64; numbers given as text count, what is no number is null, and unsigned 64-bit numbers wrap."""
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([_integer(value) for value in values], dtype=pl.Int64)


def nanoseconds(values: Sequence[Any]) -> pl.Series:
    """Int64 from microseconds: integers, floats below EXACT_US, or the JSON texts of any decimals. No number: null."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return pl.Series([value * 1000 if abs(value) <= _MOST_US else None for value in values], dtype=pl.Int64)
    if msgspec.Raw in kinds:
        return _decimals(values)
    scaled = pl.Series(values, dtype=pl.Float64, strict=kinds == {float}) * 1000
    if scaled.min() >= 0:  # type: ignore[operator]
        return (scaled + 0.5).cast(pl.Int64, strict=False)  # Series.round is slow for so few
    return scaled.round().cast(pl.Int64, strict=False)


def _decimals(values: Sequence[msgspec.Raw]) -> pl.Series:
    texts = pl.Series(b"\0".join(values).decode("utf-8", "replace").split("\0"), dtype=pl.String)
    thousandths = texts.str.strip_chars('" ').str.to_decimal(scale=3).to_physical()
    return thousandths.cast(pl.Int64, strict=False)


def _integer(value: Any) -> int | None:
    text = str(value)
    if isinstance(value, str) and not _NUMBER.fullmatch(text):
        text = "".join(filter(str.isdecimal, text))  # "stream 7 "
    number = _whole(text)
    if number is None or not -_INT64 <= number < 2 * _INT64:
        return None
    return (number + _INT64) % (2 * _INT64) - _INT64


def _whole(text: str) -> int | None:
    try:
        number = Decimal(text)
        return int(number.to_integral_value()) if number.adjusted() < 20 else None
    except (InvalidOperation, ValueError, OverflowError):
        return None
