"""NVTX ranges: the framework's ops with their shapes, the libraries' ranges, and what the user named.

`torch.autograd.profiler.emit_nvtx` writes all it knows of an op into the range's text:
`aten::bmm, seq = 10306, op_id = 88714, sizes = [[1, 2048, 768], [1, 768, 768]], input_op_ids = [...]`.
"""

from __future__ import annotations

import tomllib
from functools import cache, partial
from importlib.resources import files
from typing import Any

import polars as pl

from trace_doctor.loaders import sparing
from trace_doctor.loaders.nsight import tables as export
from trace_doctor.loaders.nsight.tables import Tables
from trace_doctor.loaders.nsight.threads import owner_of
from trace_doctor.trace import matches

# source: NVTX event types as ENUM_NSYS_EVENT_TYPE names them
_PUSH_POP, _START_END, _DOMAIN = 59, 60, 75
_NOTES = r", (?:seq|op_id|sizes|input_op_ids) = "
_SEQUENCE = r", seq = (\d{1,18})"
_SIZES = r", sizes = (\[.*?\])(?:, input_op_ids = |$)"
_OP = r"^\w+::"
"""A dispatcher op, or a range that a C++ library named so."""


def read(tables: Tables, strings: pl.DataFrame) -> pl.DataFrame:
    """Ranges of all domains: tid, start_ns, duration_ns (null: still open), name, is_op, is_library, sequence, shapes, payload.

    `is_op`: a framework's op. `payload`: JSON text, as NCCL writes sizes.
    """
    columns = ["start", "end", "eventType", "textId", "globalTid", "domainId", "jsonTextId"]
    rows = export.read(
        tables, export.NVTX, integers=columns, texts=["text", "jsonText"], shrink=partial(_shrunk, strings=strings)
    )
    is_domain = rows["is_domain"]
    domains = rows.filter(is_domain).select(
        "domain_id", owner=owner_of(pl.col("tid")), domain=pl.col("name").cast(pl.String)
    )
    ranges = sparing.keep(rows, ~pl.col("is_domain")).drop("is_domain")
    is_library = _of_libraries(ranges, domains)
    return ranges.drop("domain_id").with_columns(
        is_op=pl.col("is_noted") | matches(ranges["name"], _OP), is_library=is_library
    )


def _shrunk(part: pl.DataFrame, *, strings: pl.DataFrame) -> pl.DataFrame:
    """A part of the table: the ranges and the rows that name domains, texts taken apart so that what repeats is held once."""
    text = pl.col("text")
    wanted = sparing.keep(
        part, pl.col("eventType").is_in([_PUSH_POP, _START_END, _DOMAIN]), pl.col("start").is_not_null()
    )
    wanted = wanted.with_columns(notes=text.str.find(_NOTES))
    is_noted = pl.col("notes").is_not_null()
    plain = text.cast(pl.Binary).bin.slice(0, pl.col("notes")).cast(pl.String)
    shrunk = wanted.select(
        is_noted=is_noted,
        tid="globalTid",
        start_ns="start",
        duration_ns=pl.col("end") - pl.col("start"),
        domain_id=pl.col("domainId").cast(pl.UInt32, strict=False),
        is_domain=pl.col("eventType") == _DOMAIN,
        name=plain.cast(pl.Categorical).fill_null(export.named(wanted["textId"], strings)),
        sequence=pl.when(is_noted).then(text.str.extract(_SEQUENCE)).cast(pl.Int64),
        shapes=pl.when(is_noted).then(text.str.extract(_SIZES)).cast(pl.Categorical),
        payload=pl.col("jsonText").cast(pl.Categorical).fill_null(export.named(wanted["jsonTextId"], strings)),
    )
    return sparing.keep(shrunk, pl.col("name").is_not_null())


def _of_libraries(ranges: pl.DataFrame, domains: pl.DataFrame) -> pl.Series:
    """Whether a library opened the range: by its domain's name, which counts per process, else by its own."""
    known = [name.lower() for name in _libraries()["domains"]]
    named = domains.unique(["owner", "domain_id"], keep="first").with_columns(
        by_domain=pl.col("domain").str.to_lowercase().is_in(known)
    )
    in_domain = ranges.with_row_index("row").filter(pl.col("domain_id") > 0)
    in_domain = in_domain.select("row", "domain_id", "name", owner=owner_of(pl.col("tid")))
    by_domain = in_domain.join(named, on=["owner", "domain_id"], how="left", maintain_order="left")["by_domain"]
    is_library = pl.repeat(value=False, n=len(ranges), dtype=pl.Boolean, eager=True)
    return is_library.scatter(in_domain["row"], by_domain.fill_null(matches(in_domain["name"], _libraries()["names"])))


@cache
def _libraries() -> dict[str, Any]:
    return tomllib.loads(files("trace_doctor.loaders.nsight").joinpath("nvtx.toml").read_text(encoding="utf-8"))
