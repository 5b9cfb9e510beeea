"""What the GPUs did: kernels, copies, sets and whole CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import polars as pl

from trace_doctor.loaders.nsight import tables as export
from trace_doctor.loaders.nsight.tables import Tables
from trace_doctor.trace import ACTIVITY_KINDS

_QUEUE = ["globalPid", "deviceId", "contextId", "streamId"]
_COMMON = ["start", "end", "correlationId", *_QUEUE]
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


class Activities(NamedTuple):
    """All activities of a file."""

    rows: pl.DataFrame
    """The columns of `trace.ACTIVITIES` that the tables tell, and queue: row of `queues`."""
    queues: pl.DataFrame
    """Where they ran: owner, device_id, context_id, stream. `owner` is the process as the high part of its globalPid."""


Queues = dict[tuple[int | None, ...], int]
"""The number of each queue met so far, that is of each combination of _QUEUE."""


def read(tables: Tables, strings: pl.DataFrame) -> Activities:
    """All activities."""
    numbers: Queues = {}
    parts = [
        _kernels(tables, strings, numbers),
        _copies(tables, numbers),
        _sets(tables, numbers),
        _graphs(tables, numbers),
    ]
    together = pl.concat([part for part in parts if len(part)] or parts[:1], how="diagonal")
    queues = pl.DataFrame(
        list(numbers), schema=dict.fromkeys(["globalPid", "device_id", "context_id", "stream"], pl.Int64), orient="row"
    )
    owner = pl.col("globalPid").floordiv(1 << 24)
    known = queues.select(owner).to_series().drop_nulls().unique()
    return Activities(
        together,
        queues.select(owner.fill_null(known[0] if len(known) == 1 else NOBODY).alias("owner"), pl.exclude("globalPid")),
    )


def _kernels(tables: Tables, strings: pl.DataFrame, numbers: Queues) -> pl.DataFrame:
    columns = [*_COMMON, "demangledName", *_GRID, *_BLOCK]
    shrink = partial(_kernel_rows, strings=strings, numbers=numbers)
    kernels = export.read(tables, export.KERNEL, integers=columns, shrink=shrink)
    if not kernels["name"].null_count():
        return kernels
    short = export.named(export.read(tables, export.KERNEL, integers=["shortName"])["shortName"], strings)
    return kernels.with_columns(pl.col("name").fill_null(short).fill_null(pl.lit(UNNAMED, pl.Categorical)))


def _kernel_rows(kernels: pl.DataFrame, *, strings: pl.DataFrame, numbers: Queues) -> pl.DataFrame:
    name = export.named(kernels["demangledName"], strings)
    shape = _spread(kernels.select(_GRID + _BLOCK), lambda met: met.select(grid=_triple(_GRID), block=_triple(_BLOCK)))
    return _placed(kernels, numbers, name=name, kind="compute", grid=shape["grid"], block=shape["block"])


def _spread(rows: pl.DataFrame, tell: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    """What `tell` says of each distinct row, for all rows."""
    varies = rows.select(pl.all().ne_missing(pl.all().first()).any())
    keys = [name for name in rows.columns if varies[name].any()] or rows.columns[:1]
    met = rows.unique(keys)
    told = met.select(keys).hstack(tell(met))
    return rows.select(keys).join(told, on=keys, how="left", nulls_equal=True, maintain_order="left").drop(keys)


def _triple(columns: list[str]) -> pl.Expr:
    """A launch dimension as JSON text."""
    return pl.format("[{}, {}, {}]", *columns).cast(pl.Categorical)


def _copies(tables: Tables, numbers: Queues) -> pl.DataFrame:
    """Copies, named as Kineto names them: Memcpy HtoD (Pageable -> Device)."""
    copies = export.read(tables, export.COPY, integers=[*_COMMON, "bytes", "copyKind", "srcKind", "dstKind"])
    source, target = (_word(column, _MEMORIES, "Unknown") for column in ("srcKind", "dstKind"))
    name = pl.format("Memcpy {} ({} -> {})", _word("copyKind", _DIRECTIONS, "unknown"), source, target)
    kinds = copies.select("copyKind", "srcKind", "dstKind")
    found = _spread(kinds, lambda met: met.select(name=name.cast(pl.Categorical)))
    return _placed(copies, numbers, name=found["name"], kind="copy", bytes=copies["bytes"])


def _word(column: str, words: dict[int, str], otherwise: str) -> pl.Expr:
    return pl.col(column).replace_strict(words, default=otherwise, return_dtype=pl.String).fill_null(otherwise)


def _sets(tables: Tables, numbers: Queues) -> pl.DataFrame:
    sets = export.read(tables, export.SET, integers=[*_COMMON, "bytes"])
    return _placed(sets, numbers, name=_constant("Memset (Device)", sets), kind="set", bytes=sets["bytes"])


def _graphs(tables: Tables, numbers: Queues) -> pl.DataFrame:
    """Launches of whole graphs: in graph mode, the default, the profiler records no kernel inside."""
    graphs = export.read(tables, export.GRAPH, integers=[*_COMMON, "graphId"])
    return _placed(graphs, numbers, name=_constant("CUDA graph (kernels not recorded)", graphs), kind="graph")


def _constant(text: str, like: pl.DataFrame) -> pl.Series:
    return pl.repeat(text, len(like), dtype=pl.Categorical, eager=True)


def _placed(rows: pl.DataFrame, numbers: Queues, *, name: pl.Series, kind: str, **more: pl.Series) -> pl.DataFrame:
    return rows.select(
        pl.col("start").alias("start_ns"),
        (pl.col("end") - pl.col("start")).alias("duration_ns"),
        pl.col("correlationId").alias("correlation"),
        pl.lit(kind, ACTIVITY_KINDS).alias("kind"),
    ).with_columns(
        _numbered(rows.select(_QUEUE), numbers),
        name.alias("name"),
        *(series.alias(column) for column, series in more.items()),
    )


def _numbered(queues: pl.DataFrame, numbers: Queues) -> pl.Series:
    """The number of each row's queue; new ones are added to `numbers`."""

    def number(met: pl.DataFrame) -> pl.DataFrame:
        found = [numbers.setdefault(queue, len(numbers)) for queue in met.iter_rows()]
        return pl.DataFrame({"queue": found}, schema={"queue": pl.UInt32})

    return _spread(queues, number)["queue"]
