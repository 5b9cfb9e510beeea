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
_NUMBER = re.compile(r"\s*[-+]?[\d.]+(?:[eE][-+]?\d+)?\s*")


def integers(values: Sequence[Any]) -> pl.Series:
    """Int64; numbers given as text count, what is no number is null, and unsigned 64-bit numbers wrap."""
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([_integer(value) for value in values], dtype=pl.Int64)


def nanoseconds(values: Sequence[Any]) -> pl.Series:
    """Int64 from microseconds: floats below EXACT_US, or the JSON texts of any decimals. What is no number is null."""
    if values and type(values[0]) is float:
        return (pl.Series(values, dtype=pl.Float64) * 1000).round().cast(pl.Int64, strict=False)
    return pl.Series([_nanoseconds(text) for text in values], dtype=pl.Int64)


def _integer(value: Any) -> int | None:
    text = str(value)
    if isinstance(value, str) and not _NUMBER.fullmatch(text):
        text = "".join(filter(str.isdecimal, text))  # "stream 7 "
    number = _rounded(text, 1)
    if number is None or not -_INT64 <= number < 2 * _INT64:
        return None
    return (number + _INT64) % (2 * _INT64) - _INT64


def _nanoseconds(text: msgspec.Raw) -> int | None:
    digits = bytes(text).strip(b'" ')
    whole, _, fraction = digits.partition(b".")
    if len(whole) < 16 and whole.isdigit() and len(fraction) <= 3 and (fraction.isdigit() or not fraction):
        return int(whole) * 1000 + int(fraction.ljust(3, b"0"))
    number = _rounded(digits.decode("utf-8", "replace"), 1000)
    return number if number is not None and -_INT64 <= number < _INT64 else None


def _rounded(text: str, factor: int) -> int | None:
    try:
        number = Decimal(text) * factor
        return int(number.to_integral_value()) if number.adjusted() < 20 else None
    except (InvalidOperation, ValueError, OverflowError):
        return None
