"""Loads the JSON traces of PyTorch's profiler (Kineto) into the frames of a Trace, everything numbered and in its place."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl

from trace_doctor.errors import NothingToAnalyzeError, UnsupportedInputError
from trace_doctor.loaders import categories, collectives, impossible, memory, naming
from trace_doctor.loaders.cutting import Progress
from trace_doctor.loaders.reading import Events, read
from trace_doctor.trace import Meta, Trace, Warning, conform

MOST_RANKS = 1 << 31
"""No job has more."""


def load(path: Path, *, jobs: int | None = None, progress: Progress | None = None) -> Trace:
    """The trace of a file, unlinked: no call, op or parent is filled in, and every call's kind is "other".

    Raises InputError where the file is no trace, CorruptTraceError where its meaning is not sure, NothingToAnalyzeError
    where it holds no GPU activity.
    """
    with ThreadPoolExecutor(1) as thread:
        digest = thread.submit(_sha256, path)
        events = read(path, jobs=jobs, progress=progress)
    _refuse_idle(path, events)
    frames, information = events.frames, _mapping(events.header.distributed_info)
    working = _distinct([frames["ops"]["thread"], frames["calls"]["thread"]])
    host = naming.host(working, _distinct([frames["annotations"]["thread"]]), events.labels)
    devices = naming.devices(_distinct([frames["activities"]["owner"]]), host)
    properties = events.header.device_properties
    activities, warnings = impossible.remove(_placed(frames["activities"], devices))
    _refuse_untimed(path, activities)
    activities = activities.with_row_index("activity")
    ops, calls, annotations = (_on_threads(frames[name], host) for name in ("ops", "calls", "annotations"))
    meta = Meta(
        path=str(path),
        format="kineto",
        size_bytes=path.stat().st_size,
        sha256=digest.result(),
        rank=_whole(information.get("rank"), naming.rank_of(path), least=0),
        world_size=_whole(information.get("world_size"), None, least=1),
        node_devices=len(properties) if isinstance(properties, list) and properties else None,
        devices=naming.describe(devices, properties, _distinct([calls["name"]])),
        processes=host.processes,
        threads=host.threads,
        has_shapes=ops["shapes"].null_count() < ops.height,
        has_stacks=bool((annotations["kind"] == "python").any()),
        has_ops=ops.height > 0,
        tables_missing=tuple(_missing(ops, calls)),
        warnings=(*events.warnings, *_left_out(events.others), *warnings),
    )
    return Trace(
        meta=meta,
        activities=conform(activities, "activities"),
        ops=conform(ops.with_row_index("op"), "ops"),
        calls=conform(calls.with_row_index("call").with_columns(kind=pl.lit("other")), "calls"),
        annotations=conform(annotations, "annotations"),
        collectives=conform(collectives.told(activities, ops), "collectives"),
        metrics=conform(memory.sampled(frames["memory"], devices), "metrics"),
    )


def _refuse_idle(path: Path, events: Events) -> None:
    """A trace without GPU activity would read as a GPU that idles all the time."""
    if events.frames["activities"].height:
        return
    others = {name for _, category in events.others if (name := categories.unsupported(category))}
    if others:
        msg = f"no GPU activity: the trace is of an accelerator that is not supported, {', '.join(sorted(others))}"
        raise UnsupportedInputError(
            msg, where=str(path), hint="trace-doctor reads traces of CUDA, ROCm and XPU devices"
        )
    if events.frames["calls"].height:
        msg = (
            "no GPU activity in the trace, though the host launched work: the profiler got no kernel records "
            "(CUPTI not initialised, WSL, or no permission)"
        )
        hint = (
            "check that another profiler is not attached, that GPU performance counters are allowed, and record again"
        )
    else:
        msg = "no GPU activity in the trace: a run on the CPU only, or profiled without the GPU"
        hint = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (XPU on Intel) while the GPU works"
    raise NothingToAnalyzeError(msg, where=str(path), hint=hint)


def _refuse_untimed(path: Path, possible: pl.DataFrame) -> None:
    if possible.is_empty():
        msg = "no GPU activity in the trace that has a possible time: the profiler could not time its records"
        raise NothingToAnalyzeError(
            msg, where=str(path), hint="record fewer steps, so that its buffers are large enough"
        )


def _distinct(columns: Iterable[pl.Series]) -> list[str]:
    return list(
        dict.fromkeys(text for column in columns for text in column.unique(maintain_order=True).cast(pl.String))
    )


def _placed(activities: pl.DataFrame, devices: naming.Devices) -> pl.DataFrame:
    owner = activities["owner"]
    return activities.with_columns(
        naming.number(owner, devices.numbers, pl.UInt16).alias("device"),
        naming.number(owner, devices.processes, pl.UInt16).alias("process"),
        *(_canonical(activities[name]) for name in ("grid", "block")),
    )


def _on_threads(frame: pl.DataFrame, host: naming.Host) -> pl.DataFrame:
    """Host ranges with their thread's number, without those that lack a time."""
    texts = [name for name in ("shapes", "dtypes", "concrete") if name in frame.columns]
    return frame.with_columns(
        naming.number(frame["thread"], host.numbers, pl.UInt32).alias("thread"),
        *(_canonical(frame[name]) for name in texts),
        duration_ns=pl.col("duration_ns").fill_null(0).clip(lower_bound=0),
    ).filter(pl.col("start_ns").is_not_null())


def _canonical(texts: pl.Series) -> pl.Series:
    """JSON texts as json.dumps lays them out, whatever the file's layout."""
    found = texts.unique().drop_nulls().cast(pl.String)
    mended = [_dumped(text) for text in found]
    return texts if mended == found.to_list() else texts.replace(found, pl.Series(mended, dtype=pl.Categorical))


def _dumped(text: str) -> str:
    try:
        return json.dumps(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any, otherwise: int | None, *, least: int) -> int | None:
    return value if type(value) is int and least <= value <= MOST_RANKS else otherwise


def _left_out(others: Counter[tuple[str, str]]) -> Iterator[Warning]:
    """Events that may matter but are not read: pairs of begin and end, and categories that nobody knows."""
    pairs = sum(count for (phase, _), count in others.items() if phase in ("B", "E"))
    if pairs:
        yield Warning(
            "begin_end_events", f"begin and end events were left out, only complete (X) events are read: {pairs}"
        )
    unknown = {
        category: count
        for (phase, category), count in others.items()
        if phase == "X" and not categories.known(category)
    }
    if unknown:
        listed = ", ".join(f"{name or 'none'} ({count})" for name, count in sorted(unknown.items())[:5])
        yield Warning("unknown_categories", f"events of unknown categories were left out: {listed}")


def _missing(ops: pl.DataFrame, calls: pl.DataFrame) -> Iterator[str]:
    if ops.is_empty():
        yield "host ops"
    if calls.is_empty():
        yield "launch calls"
    if ops["shapes"].null_count() == ops.height:
        yield "op shapes"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
