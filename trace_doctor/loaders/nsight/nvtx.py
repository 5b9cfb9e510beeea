"""NVTX ranges: the framework's ops with their shapes, the libraries' ranges, and what the user named.

`torch.autograd.profiler.emit_nvtx` writes all it knows of an op into the range's text:
`aten::bmm, seq = 10306, op_id = 88714, sizes = [[1, 2048, 768], [1, 768, 768]], input_op_ids = [...]`.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import polars as pl

from trace_doctor.loaders.nsight import tables as export
from trace_doctor.loaders.nsight.tables import Tables
from trace_doctor.loaders.nsight.threads import owner_of
from trace_doctor.trace import matches

# source: NVTX event types as ENUM_NSYS_EVENT_TYPE names them
_PUSH_POP, _START_END, _DOMAIN = 59, 60, 75
_NOTES = r"(?s), (?:seq|op_id|sizes|input_op_ids) = .*$"
_SEQUENCE = r", seq = (\d{1,18})"
_SIZES = r", sizes = (\[.*?\])(?:, input_op_ids = |$)"
_OP = r"^\w+::"
"""A dispatcher op, or a range that a C++ library named so."""


def read(tables: Tables, strings: pl.DataFrame) -> pl.DataFrame:
    """Ranges of all domains: tid, start_ns, duration_ns (null: still open), name, is_op, is_library, sequence, shapes, payload.

    `is_op`: a framework's op. `payload`: JSON text, as NCCL writes sizes.
    """
    columns = ["start", "end", "eventType", "textId", "globalTid", "domainId", "jsonTextId"]
    rows = export.read(tables, export.NVTX, integers=columns, texts=["text", "jsonText"], shrink=_shrunk)
    name = _named(rows["name"], rows["textId"], strings)
    rows = rows.with_columns(name=name, payload=_named(rows["payload"], rows["jsonTextId"], strings))
    domains = rows.filter(pl.col("eventType") == _DOMAIN).select(
        "domainId", owner=owner_of(pl.col("globalTid")), domain=pl.col("name").cast(pl.String)
    )
    ranges = rows.filter(pl.col("eventType").is_in([_PUSH_POP, _START_END]) & pl.col("start").is_not_null())
    return ranges.select(
        pl.col("globalTid").alias("tid"),
        pl.col("start").alias("start_ns"),
        (pl.col("end") - pl.col("start")).alias("duration_ns"),
        "name",
        "payload",
        "sequence",
        "shapes",
        is_op=pl.col("is_noted") | matches(ranges["name"], _OP),
        is_library=_of_libraries(ranges, domains),
    ).filter(pl.col("name").is_not_null())


def _shrunk(part: pl.DataFrame) -> pl.DataFrame:
    """A part of the table with its texts taken apart, so that what repeats is held once."""
    text = pl.col("text")
    noted = part.with_columns(is_noted=text.str.contains(_NOTES).fill_null(value=False))
    return noted.select(
        "start",
        "end",
        "eventType",
        "textId",
        "globalTid",
        "domainId",
        "jsonTextId",
        "is_noted",
        name=pl.when("is_noted").then(text.str.replace(_NOTES, "")).otherwise(text).cast(pl.Categorical),
        sequence=pl.when("is_noted").then(text.str.extract(_SEQUENCE)).cast(pl.Int64),
        shapes=pl.when("is_noted").then(text.str.extract(_SIZES)).cast(pl.Categorical),
        payload=pl.col("jsonText").cast(pl.Categorical),
    )


def _named(texts: pl.Series, ids: pl.Series, strings: pl.DataFrame) -> pl.Series:
    """The text itself, else the string that the id names."""
    if ids.null_count() == len(ids):
        return texts
    return texts.cast(pl.String).fill_null(export.named(ids, strings).cast(pl.String)).cast(pl.Categorical)


def _of_libraries(ranges: pl.DataFrame, domains: pl.DataFrame) -> pl.Series:
    """Whether a library opened the range: by its domain's name, which counts per process, else by its own."""
    known = [name.lower() for name in _libraries()["domains"]]
    named = domains.unique(["owner", "domainId"], keep="first").with_columns(
        by_domain=pl.col("domain").str.to_lowercase().is_in(known)
    )
    placed = ranges.select("domainId", owner=owner_of(pl.col("globalTid")))
    by_domain = placed.join(named, on=["owner", "domainId"], how="left", maintain_order="left")["by_domain"]
    is_default = ranges["domainId"].fill_null(0) == 0
    by_name = matches(ranges["name"], _libraries()["names"]) & ~is_default
    return by_domain.fill_null(by_name) & ~is_default


@cache
def _libraries() -> dict[str, Any]:
    return tomllib.loads(files("trace_doctor.loaders.nsight").joinpath("nvtx.toml").read_text(encoding="utf-8"))
