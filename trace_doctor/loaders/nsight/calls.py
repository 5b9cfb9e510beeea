"""Runtime and driver calls of the host, and the profiler's own work."""

from __future__ import annotations

from functools import partial

import polars as pl

from trace_doctor.loaders import sparing
from trace_doctor.loaders.nsight import tables as export
from trace_doctor.loaders.nsight.tables import Tables
from trace_doctor.loaders.nsight.threads import owner_of

_SPAN = ["start", "end", "globalTid"]
# source: CUPTI's CUpti_ActivityOverheadKind. The driver's own work (2, 6, 7) costs without a profiler too.
_OVERHEADS = {
    2: "compilation: CUDA driver JIT",
    6: "CUDA module loading",
    7: "CUDA lazy function loading",
    8: "Command Buffer Full",
}
_DRIVERS_OWN = [2, 6, 7]


def read(tables: Tables, strings: pl.DataFrame) -> pl.DataFrame:
    """API calls: tid, start_ns, duration_ns (null: still open at the end), name, correlation.

    Of the rows that share a process and a correlation id (runtime and driver row of one call) the outermost.
    """
    columns = [*_SPAN, "correlationId", "nameId"]
    calls = export.read(tables, export.RUNTIME, integers=columns, shrink=partial(_call_rows, strings=strings))
    calls = _outer_first(calls)
    is_known = (pl.col("correlation") > 0).fill_null(value=False)
    known = calls.select(pl.col("correlation").filter(is_known), owner=owner_of(pl.col("tid")).filter(is_known))
    if any(_repeats(ids["correlation"]) for ids in known.partition_by("owner")):
        calls = calls.filter(~is_known | pl.struct(owner_of(pl.col("tid")), "correlation").is_first_distinct())
    return calls


def _outer_first(calls: pl.DataFrame) -> pl.DataFrame:
    """In the order of their start, of those that start together the longest first."""
    start, length = pl.col("start_ns"), pl.col("duration_ns").fill_null(1 << 62)
    follows = (start > start.shift(1)) | ((start == start.shift(1)) & (length <= length.shift(1)))
    is_ordered = calls.select(follows.all()).item()
    return calls if is_ordered else calls.sort(start, length, descending=[False, True])


def _repeats(ids: pl.Series) -> bool:
    ordered = ids.sort()  # they are nearly in order, so this costs less than a table of them
    return bool((ordered == ordered.shift(1)).any())


def _call_rows(rows: pl.DataFrame, *, strings: pl.DataFrame) -> pl.DataFrame:
    return _spans(rows, _unversioned(export.named(rows["nameId"], strings)), pl.col("correlationId"))


def _unversioned(names: pl.Series) -> pl.Series:
    """Names without the version of their ABI: cudaLaunchKernel for cudaLaunchKernel_v7000."""
    known = names.unique().drop_nulls()
    plain = known.cast(pl.String).str.replace(r"_v\d+$", "").cast(pl.Categorical)
    return names.replace_strict(known, plain, default=None, return_dtype=pl.Categorical)


def overheads(tables: Tables, strings: pl.DataFrame) -> pl.DataFrame:
    """What is no work of the program's own: tid, start_ns, duration_ns, name, kind (as in `trace.ANNOTATIONS`)."""
    cupti = export.read(tables, export.OVERHEAD, integers=[*_SPAN, "nameId", "overheadType"])
    nsight = export.read(tables, export.PROFILER, integers=[*_SPAN, "nameId"])
    kind, named = cupti["overheadType"], export.named(cupti["nameId"], strings)
    names = kind.replace_strict(_OVERHEADS, default=None, return_dtype=pl.String).fill_null(named.cast(pl.String))
    own = [
        _spans(nsight, export.named(nsight["nameId"], strings)).with_columns(kind=pl.lit("overhead")),
        _spans(cupti, names.cast(pl.Categorical)).with_columns(
            kind=pl.when(kind.is_in(_DRIVERS_OWN)).then(pl.lit("user")).otherwise(pl.lit("overhead"))
        ),
    ]
    return pl.concat(own)


def _spans(rows: pl.DataFrame, names: pl.Series, *more: pl.Expr) -> pl.DataFrame:
    spans = rows.select(
        pl.col("globalTid").alias("tid"),
        pl.col("start").alias("start_ns"),
        (pl.col("end") - pl.col("start")).alias("duration_ns"),
        *(column.alias("correlation") for column in more),
    )
    return sparing.keep(spans.with_columns(names.alias("name")), pl.col("start_ns").is_not_null())
