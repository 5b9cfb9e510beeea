"""What the GPUs did: kernels, copies, sets and whole CUDA graphs."""

from __future__ import annotations

from functools import partial

import polars as pl

from trace_doctor.loaders.nsight import tables as export
from trace_doctor.loaders.nsight.tables import Tables

_COMMON = ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"]
_NAMES = ["demangledName", "shortName"]
_GRID, _BLOCK = ["gridX", "gridY", "gridZ"], ["blockX", "blockY", "blockZ"]
# source: CUPTI's CUpti_ActivityMemcpyKind; the profiler's ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND
_DIRECTIONS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH"}
_DIRECTIONS |= {10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
"""11 to 13: pages of unified memory that move."""
NOBODY = 0
"""Owner of what no column tells the process of."""
UNNAMED = "unnamed kernel"
"""A kernel whose name is not among the file's strings."""
_MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}


def read(tables: Tables, strings: pl.DataFrame) -> pl.DataFrame:
    """All activities, with the columns of `trace.ACTIVITIES` that the tables tell, and owner, device_id and context_id.

    `owner` is the process as the high part of its globalPid.
    """
    parts = [_kernels(tables, strings), _copies(tables), _sets(tables), _graphs(tables)]
    together = pl.concat([part for part in parts if len(part)] or parts[:1], how="diagonal")
    known = together["owner"].drop_nulls().unique()
    return together.with_columns(pl.col("owner").fill_null(known[0] if len(known) == 1 else NOBODY))


def _kernels(tables: Tables, strings: pl.DataFrame) -> pl.DataFrame:
    columns = [*_COMMON, *_NAMES, *_GRID, *_BLOCK]
    return export.read(tables, export.KERNEL, integers=columns, shrink=partial(_kernel_rows, strings=strings))


def _kernel_rows(kernels: pl.DataFrame, *, strings: pl.DataFrame) -> pl.DataFrame:
    full, short = (export.named(kernels[name], strings) for name in _NAMES)
    launch = kernels.select(_GRID + _BLOCK)
    shapes = launch.unique().with_columns(_triple(_GRID).alias("grid"), _triple(_BLOCK).alias("block"))
    placed = launch.join(shapes, on=_GRID + _BLOCK, how="left", nulls_equal=True, maintain_order="left")
    return _placed(
        kernels,
        name=_filled(full, short) if full.null_count() else full,
        kind="compute",
        grid=placed["grid"],
        block=placed["block"],
    )


def _filled(full: pl.Series, short: pl.Series) -> pl.Series:
    return full.cast(pl.String).fill_null(short.cast(pl.String)).fill_null(UNNAMED).cast(pl.Categorical)


def _triple(columns: list[str]) -> pl.Expr:
    """A launch dimension as JSON text."""
    return pl.format("[{}, {}, {}]", *columns).cast(pl.Categorical)


def _copies(tables: Tables) -> pl.DataFrame:
    """Copies, named as Kineto names them: Memcpy HtoD (Pageable -> Device)."""
    copies = export.read(tables, export.COPY, integers=[*_COMMON, "bytes", "copyKind", "srcKind", "dstKind"])
    kinds = copies.select("copyKind", "srcKind", "dstKind").unique()
    source, target = (_word(column, _MEMORIES, "Unknown") for column in ("srcKind", "dstKind"))
    named = kinds.with_columns(
        name=pl.format("Memcpy {} ({} -> {})", _word("copyKind", _DIRECTIONS, "unknown"), source, target)
    )
    found = copies.join(named, on=kinds.columns, how="left", nulls_equal=True, maintain_order="left")
    return _placed(copies, name=found["name"].cast(pl.Categorical), kind="copy", bytes=copies["bytes"])


def _word(column: str, words: dict[int, str], otherwise: str) -> pl.Expr:
    return pl.col(column).replace_strict(words, default=otherwise, return_dtype=pl.String).fill_null(otherwise)


def _sets(tables: Tables) -> pl.DataFrame:
    sets = export.read(tables, export.SET, integers=[*_COMMON, "bytes"])
    return _placed(sets, name=_constant("Memset (Device)", sets), kind="set", bytes=sets["bytes"])


def _graphs(tables: Tables) -> pl.DataFrame:
    """Launches of whole graphs: in graph mode, the default, the profiler records no kernel inside."""
    graphs = export.read(tables, export.GRAPH, integers=[*_COMMON, "graphId"])
    return _placed(graphs, name=_constant("CUDA graph (kernels not recorded)", graphs), kind="graph")


def _constant(text: str, like: pl.DataFrame) -> pl.Series:
    return pl.repeat(text, len(like), dtype=pl.Categorical, eager=True)


def _placed(rows: pl.DataFrame, *, name: pl.Series, kind: str, **more: pl.Series) -> pl.DataFrame:
    return rows.select(
        pl.col("globalPid").floordiv(1 << 24).alias("owner"),
        pl.col("deviceId").alias("device_id"),
        pl.col("contextId").alias("context_id"),
        pl.col("streamId").alias("stream"),
        pl.col("start").alias("start_ns"),
        (pl.col("end") - pl.col("start")).alias("duration_ns"),
        pl.col("correlationId").alias("correlation"),
        pl.lit(kind).alias("kind"),
    ).with_columns(name.alias("name"), *(series.alias(column) for column, series in more.items()))
