"""The tables of an export, wherever they stand: columns by name, each table and each column optional.

Nsight Systems writes a table only if it has rows, and renames columns between versions. So a reader names what it wants, and
gets null where this export has no such table or column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from trace_doctor.loaders import sparing

Fetch = Callable[[str, Sequence[str], Sequence[str]], Iterator[pl.DataFrame]]
"""(table, integer columns, text columns) -> the rows, in parts."""
KERNEL, COPY, SET, GRAPH = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))
RUNTIME, OVERHEAD = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_OVERHEAD"
NVTX, STRINGS, THREADS = "NVTX_EVENTS", "StringIds", "ThreadNames"
PROFILER, DIAGNOSTICS = "PROFILER_OVERHEAD", "DIAGNOSTIC_EVENT"
GPUS, OLD_GPUS, CUDA_DEVICES = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU", "TARGET_INFO_CUDA_DEVICE"
METRICS, METRIC_NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
READ = (
    KERNEL, COPY, SET, GRAPH, RUNTIME, OVERHEAD, NVTX, STRINGS, THREADS, PROFILER, DIAGNOSTICS,
    GPUS, OLD_GPUS, CUDA_DEVICES, METRICS, METRIC_NAMES,
)  # fmt: skip
"""All that is ever read. Others hold the environment of the profiled process, and with it its secrets."""


@dataclass(frozen=True, kw_only=True)
class Tables:
    """An open export."""

    columns: Mapping[str, frozenset[str]]
    """Of each table of READ that there is."""
    fetch: Fetch

    def __contains__(self, table: str) -> bool:
        return table in self.columns


def read(
    tables: Tables,
    table: str,
    *,
    integers: Sequence[str] = (),
    texts: Sequence[str] = (),
    shrink: Callable[[pl.DataFrame], pl.DataFrame] = lambda part: part,
) -> pl.DataFrame:
    """The wanted columns of a table: Int64 and String, null where this export lacks them. `shrink` is done to each part.

    Empty texts are null.
    """
    schema: dict[str, pl.DataType] = dict.fromkeys(integers, pl.Int64()) | dict.fromkeys(texts, pl.String())
    there = tables.columns.get(table, frozenset())
    parts = tables.fetch(table, [c for c in integers if c in there], [c for c in texts if c in there]) if there else ()
    missing = [pl.lit(None, dtype).alias(column) for column, dtype in schema.items() if column not in there]
    shrunk = [shrink(part.with_columns(missing).select(list(schema))) for part in parts]
    return sparing.stacked(shrunk) if shrunk else shrink(pl.DataFrame(schema=schema))


def strings(tables: Tables) -> pl.DataFrame:
    """StringIds: id and value, for the names that other tables refer to. It also holds output of the program: never list it."""
    return read(tables, STRINGS, integers=["id"], texts=["value"]).drop_nulls().unique("id", keep="first")


def named(ids: pl.Series, values: pl.DataFrame) -> pl.Series:
    """The texts (Categorical) of a column of string ids; null for ids that name nothing."""
    if ids.null_count() == len(ids):
        return pl.repeat(None, len(ids), dtype=pl.Categorical, eager=True)
    wanted = ids.unique().drop_nulls().to_frame("id").join(values, on="id")
    texts = wanted["value"].cast(pl.Categorical)
    return ids.replace_strict(wanted["id"], texts, default=None, return_dtype=pl.Categorical)
