"""A loaded trace in the frames of HolisticTraceAnalysis 0.5, so that its analyses run without its parser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from trace_doctor.interop.extras import require
from trace_doctor.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from hta.trace_analysis import TraceAnalysis

Ticks = Literal["us", "ns", "hta"]
"""How times are cut to integers: to whole microseconds, not at all, or as HTA's loader does it."""

_UNKNOWN = -1
_ACTIVITY_CATEGORIES = {"copy": "gpu_memcpy", "set": "gpu_memset"}
_ANNOTATION_CATEGORIES = {"user": "user_annotation", "overhead": "overhead", "python": "python_function"}
_STEP = r"^ProfilerStep\s*#\s*(\d+)"


def to_hta(*traces: Trace, unit: Literal["us", "ns"] = "us") -> TraceAnalysis:
    """HTA's `TraceAnalysis` of loaded traces, one rank of HTA a GPU, nothing left out.

    Ranks are those of the traces where each names another one and drives one GPU, else 0, 1, ... in order. HTA counts in
    whole microseconds, so `unit="us"` keeps its labels true, each time off by up to 1 us; with `unit="ns"` all its numbers are
    exact, and are nanoseconds whatever a column is called. What no frame of ours holds HTA doesn't see either: GPU-side
    annotations and `cuda_sync` marks.
    """
    return analysis(gpus(traces), ticks=unit)


def gpus(traces: Sequence[Trace]) -> dict[int, tuple[Trace, int]]:
    """Each rank of HTA with its trace and the position of its GPU in the trace's meta data."""
    found = [(trace, number) for trace in traces for number in trace.activities["device"].unique().sort()]
    ranks = [trace.meta.rank for trace, _ in found]
    named = [rank for rank in ranks if rank is not None]
    return dict(zip(named if len(set(named)) == len(found) else range(len(found)), found, strict=True))


def analysis(ranks: dict[int, tuple[Trace, int]], *, ticks: Ticks, linked_only: bool = False) -> TraceAnalysis:
    """HTA's analyses over these GPUs. `linked_only`: without kernels whose launch is not in the trace, as HTA's loader leaves them."""
    frames = {rank: events(trace, number, ticks=ticks) for rank, (trace, number) in ranks.items()}
    if linked_only:
        frames = {rank: _linked(frame) for rank, frame in frames.items()}
    origin = min(int(frame["ts"][0]) for frame in frames.values())
    symbols = (
        pl.concat([frame[name] for frame in frames.values() for name in ("name", "cat")]).unique().sort().to_list()
    )
    holder = require("hta.common.trace", extra="hta").Trace(trace_files={})
    holder.symbol_table.add_symbols(symbols)
    holder.min_ts = origin
    holder.trace_files = {rank: trace.meta.path for rank, (trace, _) in ranks.items()}
    holder.meta_data = {rank: _meta(rank, trace) for rank, (trace, _) in ranks.items()}
    holder.traces = {rank: _encoded(frame, symbols, origin) for rank, frame in frames.items()}
    holder.is_parsed = True
    return analyses(holder)


def analyses(holder: Any) -> TraceAnalysis:
    """HTA's analyses of its filled `Trace`; their constructor would parse files."""
    kind = require("hta.trace_analysis", extra="hta").TraceAnalysis
    made: TraceAnalysis = object.__new__(kind)
    made.t = holder
    return made


def events(trace: Trace, number: int, *, ticks: Ticks) -> pl.DataFrame:
    """One GPU's activities and the host events of its processes as HTA's rows, names and categories in words."""
    mine = trace.activities.filter(pl.col("device") == number)
    parts = [_gpu_events(trace, mine, number), *_host_events(trace, mine["process"].drop_nulls().unique().to_list())]
    rows = pl.concat(parts, how="diagonal").sort("start_ns", "duration_ns", descending=[False, True])
    cut = rows.with_columns(_times(ticks)).with_row_index("index", offset=1)
    return _iterations(_links(cut.with_columns(pl.col("index").cast(pl.Int64), end=pl.col("ts") + pl.col("dur"))))


def _gpu_events(trace: Trace, activities: pl.DataFrame, number: int) -> pl.DataFrame:
    took_time = pl.col("duration_ns") > 0
    return activities.select(
        "start_ns",
        "duration_ns",
        pl.col("name").cast(pl.String),
        pl.col("kind").cast(pl.String).replace_strict(_ACTIVITY_CATEGORIES, default="kernel").alias("cat"),
        pl.lit(trace.meta.devices[number].number or 0, pl.Int64).alias("pid"),
        pl.col("stream").alias("tid"),
        "stream",
        "correlation",
        "call",
        trace.calls["external"].gather(activities["call"]).alias("external_id"),
        "bytes",
        # bytes a nanosecond are GB/s
        pl.when(took_time).then(pl.col("bytes") / pl.col("duration_ns")).alias("memory_bw_gbps"),
    )


def _host_events(trace: Trace, processes: list[int]) -> Iterator[pl.DataFrame]:
    threads = _threads(trace, processes)
    common = [pl.col("start_ns", "duration_ns"), pl.col("name").cast(pl.String), pl.col("pid", "tid")]
    stream, external = pl.lit(_UNKNOWN, pl.Int64).alias("stream"), pl.col("external").alias("external_id")
    recorded = pl.col("shapes", "dtypes").cast(pl.String)
    kind = pl.col("kind").cast(pl.String).replace_strict(_ANNOTATION_CATEGORIES)
    ops, calls, marks = (each.join(threads, on="thread") for each in (trace.ops, trace.calls, trace.annotations))
    yield ops.select(*common, pl.lit("cpu_op").alias("cat"), stream, external, recorded)
    yield calls.select(*common, _call_category().alias("cat"), stream, external, "correlation", "call")
    yield marks.select(*common, kind.alias("cat"), stream)


def _threads(trace: Trace, processes: list[int]) -> pl.DataFrame:
    """The host threads of these processes, of all where none is known, with ids for HTA: thread, pid, tid."""
    ids = [int(label) if label.isdecimal() else place + 1 for place, label in enumerate(trace.meta.processes)]
    rows = [
        (place, ids[thread.process], place + 1)
        for place, thread in enumerate(trace.meta.threads)
        if thread.process in processes or not processes
    ]
    return pl.DataFrame(rows, schema={"thread": pl.UInt32, "pid": pl.Int64, "tid": pl.Int64}, orient="row")


def _call_category() -> pl.Expr:
    """Kineto's category of an API function: CUDA's driver calls start with cu, XPU's with ur or ze."""
    name = pl.col("name").cast(pl.String)
    return (
        pl.when(name.str.contains(r"^cu[A-Z]"))
        .then(pl.lit("cuda_driver"))
        .when(name.str.contains(r"^(ur|ze)[A-Z]"))
        .then(pl.lit("xpu_runtime"))
        .otherwise(pl.lit("cuda_runtime"))
    )


def _times(ticks: Ticks) -> list[pl.Expr]:
    """`ts` and `dur`. HTA's loader rounds starts up and ends down, in floating-point microseconds."""
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("duration_ns")
    if ticks == "ns":
        return [start.alias("ts"), pl.col("duration_ns").alias("dur")]
    if ticks == "us":
        return [(start // 1000).alias("ts"), (end // 1000 - start // 1000).alias("dur")]
    first, length = (pl.col(name) // 1000 + pl.col(name) % 1000 / 1000 for name in ("start_ns", "duration_ns"))
    ts = first.ceil().cast(pl.Int64)
    return [ts.alias("ts"), ((first + length).floor().cast(pl.Int64) - ts).alias("dur")]


def _links(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with `index_correlation`: the index of the launch or of the last kernel launched; 0 where it is not in the trace."""
    is_gpu = pl.col("stream") >= 0
    last = rows.filter(is_gpu & pl.col("call").is_not_null()).group_by("call").agg(kernel=pl.col("index").max())
    launch = rows.filter(~is_gpu & pl.col("call").is_not_null()).select("call", launch="index")
    correlation = pl.col("correlation").fill_null(_UNKNOWN)
    return (
        rows.join(last, on="call", how="left", maintain_order="left")
        .join(launch, on="call", how="left", maintain_order="left")
        .with_columns(
            correlation,
            index_correlation=pl.when(is_gpu).then("launch").otherwise("kernel").fill_null(correlation.clip(None, 0)),
        )
    )


def _iterations(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with `iteration`: the step mark that a host event starts in, the launch's for a kernel; -1 for none."""
    steps = (
        rows.filter(pl.col("stream") < 0, pl.col("name").str.contains(_STEP))
        .select("ts", until="end", step=pl.col("name").str.extract(_STEP, 1).cast(pl.Int64, strict=False))
        .sort("ts")
    )
    placed = rows.join_asof(steps, on="ts").with_columns(
        iteration=pl.when((pl.col("stream") < 0) & (pl.col("ts") < pl.col("until"))).then("step")
    )
    of_launch = placed.select(index_correlation="index", of_launch="iteration")
    return placed.join(of_launch, on="index_correlation", how="left", maintain_order="left").with_columns(
        pl.when(pl.col("stream") < 0).then("iteration").otherwise("of_launch").fill_null(_UNKNOWN).alias("iteration")
    )


def _linked(rows: pl.DataFrame) -> pl.DataFrame:
    """Without kernels that no host event shares its correlation with: HTA's filter, which works on two steps or more."""
    steps = rows.filter(pl.col("name").str.contains("ProfilerStep", literal=True))
    host = rows.filter(pl.col("stream") < 0)
    launched = pl.col("correlation").is_in(host["correlation"].unique().implode())
    return rows if steps["name"].n_unique() < 2 else rows.filter((pl.col("stream") < 0) | launched)


def _encoded(rows: pl.DataFrame, symbols: list[str], origin: int) -> pd.DataFrame:
    """The frame that HTA works on: symbols by number, time from the first event on."""
    shapes = {column: _decoded(rows[column]) for column in ("shapes", "dtypes")}
    filled = rows.select(
        pl.col("index"),
        pl.col("name", "cat").replace_strict(symbols, range(len(symbols)), return_dtype=pl.Int64),
        pl.col("ts") - origin,
        "dur",
        pl.col("end") - origin,
        pl.col("pid", "tid", "stream", "correlation", "index_correlation", "iteration"),
        pl.col("external_id", "bytes").fill_null(_UNKNOWN),
        pl.col("memory_bw_gbps").fill_null(0.0),
        wait_on_stream=_UNKNOWN,
        wait_on_cuda_event_record_corr_id=_UNKNOWN,
    )
    frame: pd.DataFrame = filled.to_pandas().assign(
        input_dims=shapes["shapes"], input_type=shapes["dtypes"], input_strides=str(_UNKNOWN)
    )
    return frame.set_index("index", drop=False).rename_axis(None)


def _decoded(texts: pl.Series) -> list[Any]:
    """JSON texts as the lists that HTA's parser gives, "-1" for none."""
    words = texts.cast(pl.String)
    values = {word: json.loads(word) for word in words.unique().drop_nulls()}
    return [values.get(word, str(_UNKNOWN)) for word in words]


def _meta(rank: int, trace: Trace) -> dict[str, Any]:
    return {"distributedInfo": {"rank": rank, "world_size": trace.meta.world_size}}
