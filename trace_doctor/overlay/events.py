"""Chrome's JSON trace events from frames, as text: one event a line, times in µs with all their digits.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import polars as pl

from trace_doctor.loaders.cutting import fault

CATEGORY = "trace_doctor"
"""Of all events that are not the profiler's; loaders/categories.toml leaves them out."""
CHUNK_ROWS = 50_000
SEPARATOR = b",\n"
Fields = Mapping[str, pl.Expr | str | int]
"""Of a JSON object: the JSON text of each key, or a value that all rows share."""


def event(phase: str, name: str, pid: int, tid: int, *, at_ns: int | None = None, **more: Any) -> bytes:
    """One event; `more` are further keys, such as args."""
    fields = {"ph": phase, "cat": CATEGORY, "name": name, "pid": pid, "tid": tid}
    time = {} if at_ns is None else {"ts": msgspec.Raw(_microseconds(at_ns).encode())}
    return msgspec.json.encode({**fields, **time, **more})


def named(kind: str, name: str, pid: int, tid: int, order: int) -> list[bytes]:
    """The label and the place in the order of a "process" or "thread"."""
    return [
        event("M", f"{kind}_name", pid, tid, args={"name": name}),
        event("M", f"{kind}_sort_index", pid, tid, args={"sort_index": order}),
    ]


def lines(frame: pl.DataFrame, fields: Fields) -> Iterator[bytes]:
    """Rows of a frame as events, some thousands at a time; `fields` as in `members`."""
    row = members(fields)
    for chunk in frame.iter_slices(CHUNK_ROWS):
        yield SEPARATOR.join(text.encode() for text in chunk.select(event=row).to_series())


def members(fields: Fields) -> pl.Expr:
    """A JSON object: the JSON text of each key, left out where it is null, or a value that all rows share."""
    texts = [
        pl.lit(msgspec.json.encode(key).decode() + ":")
        + (value.cast(pl.String) if isinstance(value, pl.Expr) else pl.lit(msgspec.json.encode(value).decode()))
        for key, value in fields.items()
    ]
    if not texts:
        return pl.lit("{}")
    return pl.concat_str(pl.lit("{"), pl.concat_str(texts, separator=",", ignore_nulls=True), pl.lit("}"))


def quoted(names: pl.Series, shown: Callable[[str], str] = str) -> pl.Series:
    """Names as JSON texts, each distinct one made once, after `shown`; null stays null."""
    return _each(names, lambda name: msgspec.json.encode(shown(name)).decode())


def embedded(texts: pl.Series) -> pl.Series:
    """JSON texts as they are, each distinct one proven to be one; what is none as a JSON string."""
    return _each(texts, lambda text: text if fault(text.encode()) is None else msgspec.json.encode(text).decode())


def _each(texts: pl.Series, make: Callable[[str], str]) -> pl.Series:
    distinct = texts.unique().drop_nulls().cast(pl.String)
    made = pl.Series([make(text) for text in distinct], dtype=pl.String)
    return texts.cast(pl.String).replace_strict(distinct, made, default=None, return_dtype=pl.String)


def microseconds(time_ns: pl.Expr, ps: pl.Expr | None = None) -> pl.Expr:
    """A time in ns, and ps beyond it, as JSON text in µs: exact, which a float64 would not be."""
    is_before_zero = time_ns < 0
    borrowed = is_before_zero & (ps > 0) if ps is not None else pl.lit(value=False)
    size_ns = time_ns.abs() - borrowed.cast(pl.Int64)
    digits = [(size_ns // 1_000).cast(pl.String), pl.lit("."), (size_ns % 1_000).cast(pl.String).str.zfill(3)]
    if ps is not None:
        digits.append(pl.when(borrowed).then(1_000 - ps).otherwise(ps).cast(pl.String).str.zfill(3))
    return pl.concat_str(pl.when(is_before_zero).then(pl.lit("-")).otherwise(pl.lit("")), *digits)


def _microseconds(time_ns: int) -> str:
    return f"{'-' if time_ns < 0 else ''}{abs(time_ns) // 1_000}.{abs(time_ns) % 1_000:03d}"
