"""From the tables of an export to a Trace, everything numbered and in its place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import polars as pl

from trace_doctor.errors import NothingToAnalyzeError
from trace_doctor.loaders import impossible, naming, sparing
from trace_doctor.loaders.nsight import activities as gpu
from trace_doctor.loaders.nsight import calls as host_calls
from trace_doctor.loaders.nsight import collectives, database, devices, diagnostics, folder, metrics, nvtx, threads
from trace_doctor.loaders.nsight import tables as export
from trace_doctor.loaders.nsight.tables import Tables
from trace_doctor.trace import Meta, Trace, Warning, conform

_RECORD = "nsys profile --trace=cuda,nvtx --sample=none --output report COMMAND, then nsys export --type sqlite"


def load(path: Path, *, report: Path | None = None) -> Trace:
    """The trace of an export, unlinked: no call, op or parent is filled in, and every call's kind is "other".

    `report` is the file that the user named, where the export was made of one.

    Raises InputError where the file is no export or can't be read, NothingToAnalyzeError where it holds no GPU activity.
    """
    with ThreadPoolExecutor(1) as thread:
        digest = thread.submit(_digest, report or path)
        trace = _loaded(path, folder.open_(path) if path.is_dir() else database.open_(path))
        size_bytes, sha256 = digest.result()
    meta = replace(trace.meta, path=str(report or path), size_bytes=size_bytes, sha256=sha256)
    return replace(trace, meta=meta)


def _loaded(path: Path, tables: Tables) -> Trace:
    strings = export.strings(tables)
    activities, queues = gpu.read(tables, strings)
    _refuse_idle(path, tables, activities)
    calls, overheads = host_calls.read(tables, strings), host_calls.overheads(tables, strings)
    ranges = nvtx.read(tables, strings)
    host = threads.find(tables, strings, queues["owner"], [part["tid"] for part in (calls, overheads, ranges)])
    found = devices.find(tables, queues)
    activities, impossibles = impossible.remove(_placed(activities, queues, host, found))
    if activities.is_empty():
        msg = "no GPU activity in the export that has a possible time"
        raise NothingToAnalyzeError(msg, where=str(path), hint="export the report again, or record it again")
    activities = activities.with_row_index("activity")
    end_ns = _end_ns(activities, calls, ranges)
    job, told = collectives.job(ranges), collectives.told(gpu.Activities(activities, queues), calls, ranges)
    has_ops = bool(ranges["is_op"].any())
    # what is in its final form replaces what it was made from, so that little is held twice
    activities = conform(activities, "activities")
    calls = conform(_on_threads(calls, host, end_ns).with_row_index("call").with_columns(kind=pl.lit("other")), "calls")
    is_op = pl.col("is_op") | pl.col("is_library")
    named = ranges.filter(~is_op).with_columns(kind=pl.lit("user")).select(overheads.columns)
    ranges = _on_threads(
        sparing.keep(ranges, is_op).select("tid", "start_ns", "duration_ns", "name", "sequence", "shapes"), host, end_ns
    )
    ops = conform(ranges.with_row_index("op"), "ops")
    meta = Meta(
        path=str(path),
        format="nsight",
        size_bytes=0,
        sha256="",
        rank=job.rank if job.rank is not None else naming.rank_of(path),
        world_size=job.world_size,
        node_devices=found.in_machine,
        devices=found.described,
        processes=host.processes,
        threads=host.threads,
        has_shapes=ops["shapes"].null_count() < len(ops),
        has_ops=has_ops,
        tables_missing=tuple(_missing(tables, ops)),
        warnings=(*impossibles, *_opaque(activities), *diagnostics.read(tables)),
    )
    return Trace(
        meta=meta,
        activities=activities,
        ops=ops,
        calls=calls,
        annotations=conform(_on_threads(pl.concat([named, overheads]), host, end_ns), "annotations"),
        collectives=conform(told, "collectives"),
        metrics=conform(metrics.read(tables, found.by_metrics_id), "metrics"),
    )


def _refuse_idle(path: Path, tables: Tables, activities: pl.DataFrame) -> None:
    """An export without GPU activity would read as a GPU that idles all the time."""
    if len(activities):
        return
    if len(export.read(tables, export.RUNTIME, integers=["start"])):
        why = "no GPU activity in the export: no kernel table, though the host called CUDA"
    else:
        why = "no GPU activity in the export: no kernel table, so CUDA was not traced or the program used no GPU"
    told = "".join(f"; Nsight says: {warning.message}" for warning in diagnostics.read(tables))
    raise NothingToAnalyzeError(why + told, where=str(path), hint=_RECORD)


def _placed(activities: pl.DataFrame, queues: pl.DataFrame, host: threads.Host, found: devices.Devices) -> pl.DataFrame:
    """Activities with their process and device, and streams that differ where their contexts do."""
    placed = queues.join(host.owners, on="owner", how="left", maintain_order="left").join(
        found.numbers, on=["owner", "device_id"], how="left", nulls_equal=True, maintain_order="left"
    )
    queue = ["device", "stream", "owner", "context_id"]
    # a stream's number counts within its context only
    numbered = (
        placed.select(queue)
        .unique()
        .sort(queue)
        .with_columns(stream_number=pl.col("stream") + (1 << 32) * pl.int_range(pl.len()).over("device", "stream"))
    )
    placed = placed.join(numbered, on=queue, how="left", nulls_equal=True, maintain_order="left")
    where = activities["queue"]
    return activities.with_columns(
        placed["process"].gather(where),
        placed["device"].gather(where),
        placed["stream_number"].gather(where).alias("stream"),
    )


def _on_threads(frame: pl.DataFrame, host: threads.Host, end_ns: int) -> pl.DataFrame:
    """Host ranges of the processes that drive a GPU, with their thread's number; open ones last until the end."""
    tids, numbers = host.numbers.get_columns()
    thread = pl.col("tid").replace_strict(tids, numbers, default=None, return_dtype=numbers.dtype)
    is_time = (
        pl.col(name).is_between(-impossible.LATEST_NS, impossible.LATEST_NS) for name in ("start_ns", "duration_ns")
    )
    placed = frame.drop("tid").with_columns(
        frame.select(thread=thread).to_series(),
        duration_ns=pl.col("duration_ns").fill_null(end_ns - pl.col("start_ns")).clip(lower_bound=0),
    )
    return sparing.in_order(sparing.keep(placed, pl.col("thread").is_not_null(), *is_time), "start_ns")


def _end_ns(*frames: pl.DataFrame) -> int:
    ends = [frame.select((pl.col("start_ns") + pl.col("duration_ns")).max()).item() for frame in frames]
    return max((end for end in ends if end is not None), default=0)


def _missing(tables: Tables, ops: pl.DataFrame) -> Iterator[str]:
    if export.NVTX not in tables:
        yield "NVTX ranges"
    if ops.is_empty():
        yield "host ops"
    if export.RUNTIME not in tables:
        yield "launch calls"
    if ops["shapes"].null_count() == len(ops):
        yield "op shapes"
    if export.GRAPH in tables:
        yield "kernels inside CUDA graphs"


def _opaque(activities: pl.DataFrame) -> Iterator[Warning]:
    graphs = activities.filter(pl.col("kind") == "graph")
    if len(graphs):
        share = int(graphs["duration_ns"].sum()) / max(1, int(activities["duration_ns"].sum()))
        yield Warning(
            "opaque-graphs",
            f"CUDA graphs were recorded whole: {len(graphs)} launches hold {share:.0%} of the GPU time, and which kernels "
            "ran inside is not known; record with nsys profile --cuda-graph-trace=node to see them",
        )


def _digest(path: Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a file, or of the files of a folder in the order of their names."""
    digest, size_bytes = hashlib.sha256(), 0
    for part in sorted(path.iterdir()) if path.is_dir() else [path]:
        with part.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size_bytes += len(block)
    return size_bytes, digest.hexdigest()
