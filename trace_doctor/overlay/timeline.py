"""A whole trace as Chrome's JSON, from its frames: what Perfetto shows of an Nsight export, or of a file too damaged to copy.

Categories and arguments are those of PyTorch's profiler, so that tools that read its traces read these.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import polars as pl

from trace_doctor.overlay.events import Fields, embedded, event, lines, members, microseconds, quoted
from trace_doctor.trace import ACTIVITIES, Trace

HOST_PID = 1_000_000
"""Of the first process; GPUs have their numbers."""
_CATEGORIES = {"copy": "gpu_memcpy", "set": "gpu_memset", "user": "user_annotation", "python": "python_function"}
_COLLECTIVE = {
    "name": "Collective name",
    "dtype": "dtype",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "group": "Process Group Name",
    "group_description": "Process Group Description",
    "group_size": "Group size",
    "ranks": "Process Group Ranks",
    "sequence": "Seq",
}
"""The profiler's keys for the fields of a collective."""
_TEXTS = ("name", "dtype", "group", "group_description", "ranks")
_OP = {"shapes": "Input Dims", "dtypes": "Input type", "concrete": "Concrete Inputs"}
_NUMBERS = {
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "external": "External id",
    "correlation": "correlation",
}
_SLICE: Fields = {
    "ph": "X",
    "cat": pl.col("category"),
    "name": pl.col("name"),
    "ts": microseconds(pl.col("start_ns")),
    "dur": microseconds(pl.col("duration_ns")),
}


def header(trace: Trace) -> bytes:
    """The keys before the events: devices and rank."""
    meta = trace.meta
    properties: list[dict[str, object]] = [
        {"id": number, "name": info.name, "totalGlobalMem": info.memory_bytes, "numSms": info.multiprocessors}
        for number, info in enumerate(meta.devices)
    ]
    properties += [{"id": number} for number in range(len(properties), meta.node_devices or 0)]
    distributed = {"rank": meta.rank, "world_size": meta.world_size}
    fields = {"schemaVersion": 1, "deviceProperties": properties, "displayTimeUnit": "ms"}
    return msgspec.json.encode({**fields, **({"distributedInfo": distributed} if meta.rank is not None else {})})


def timeline(trace: Trace) -> Iterator[bytes]:
    """All events of a trace."""
    places = _places(trace)
    yield from _labels(trace)
    yield from _activities(trace)
    for frame, category in ((trace.ops, "cpu_op"), (trace.calls, "cuda_runtime"), (trace.annotations, None)):
        yield from _host(frame.join(places, on="thread", how="left", maintain_order="left"), category)
    yield from _arrows(trace, places)
    yield from _samples(trace)


def _labels(trace: Trace) -> Iterator[bytes]:
    meta = trace.meta
    for number, info in enumerate(meta.devices):
        yield event(
            "M",
            "process_name",
            number,
            0,
            args={"name": f"GPU {info.label}" + (f" ({info.name})" if info.name else "")},
        )
    for number, process in enumerate(meta.processes):
        yield event("M", "process_name", HOST_PID + number, 0, args={"name": f"process {process}"})
    for number, thread in enumerate(meta.threads):
        yield event("M", "thread_name", HOST_PID + thread.process, number + 1, args={"name": thread.label})
    for device, stream in trace.activities.select("device", "stream").unique().sort("device", "stream").iter_rows():
        yield event("M", "thread_name", device, stream or 0, args={"name": f"stream {stream}"})


def _places(trace: Trace) -> pl.DataFrame:
    """The pid and tid of each thread."""
    processes = [thread.process for thread in trace.meta.threads]
    return pl.DataFrame(
        {
            "thread": range(len(processes)),
            "pid": [HOST_PID + process for process in processes],
            "tid": range(1, len(processes) + 1),
        },
        schema={"thread": pl.UInt32, "pid": pl.Int64, "tid": pl.Int64},
    )


def _activities(trace: Trace) -> Iterator[bytes]:
    told = trace.collectives.select(
        "activity",
        *(
            (quoted(trace.collectives[name]) if name in _TEXTS else pl.col(name)).alias(key)
            for name, key in _COLLECTIVE.items()
        ),
    )
    own = trace.activities.select(list(ACTIVITIES))
    rows = own.join(told, on="activity", how="left", maintain_order="left").with_columns(
        *(embedded(trace.activities[name]) for name in ("grid", "block")),
        name=quoted(trace.activities["name"]),
        category=quoted(_category(trace.activities["kind"], "kernel")),
    )
    keys = ("device", "stream", "correlation", "bytes", "grid", "block", *_COLLECTIVE.values())
    place = {"pid": pl.col("device"), "tid": pl.col("stream").fill_null(0)}
    yield from lines(rows, {**_SLICE, **place, "args": members({key: pl.col(key) for key in keys})})


def _host(frame: pl.DataFrame, category: str | None) -> Iterator[bytes]:
    columns = [name for name in (*_OP, *_NUMBERS) if name in frame.columns]
    rows = frame.with_columns(
        *(embedded(frame[name]) for name in columns if name in _OP),
        name=quoted(frame["name"]),
        category=pl.lit(f'"{category}"') if category else quoted(_category(frame["kind"], "overhead")),
    )
    more = members({(_OP | _NUMBERS)[name]: pl.col(name) for name in columns})
    yield from lines(rows, {**_SLICE, "pid": pl.col("pid"), "tid": pl.col("tid"), "args": more})


def _category(kinds: pl.Series, otherwise: str) -> pl.Series:
    return kinds.cast(pl.String).replace_strict(_CATEGORIES, default=otherwise, return_dtype=pl.String)


def _arrows(trace: Trace, places: pl.DataFrame) -> Iterator[bytes]:
    """From each launch to what it launched."""
    launched = trace.activities.filter(pl.col("call").is_not_null())
    calls = trace.calls.select("call", "thread", called_ns="start_ns").join(places, on="thread")
    both = launched.join(calls, on="call", maintain_order="left")
    arrow: Fields = {"cat": "ac2g", "name": "ac2g", "id": pl.col("activity")}
    start: Fields = {"ph": "s", "pid": pl.col("pid"), "tid": pl.col("tid"), "ts": microseconds(pl.col("called_ns"))}
    end: Fields = {
        "ph": "f",
        "bp": "e",
        "pid": pl.col("device"),
        "tid": pl.col("stream").fill_null(0),
        "ts": microseconds(pl.col("start_ns")),
    }
    yield from lines(both, {**arrow, **start})
    yield from lines(both, {**arrow, **end})


def _samples(trace: Trace) -> Iterator[bytes]:
    """Sampled GPU metrics as curves."""
    known = trace.metrics.filter(pl.col("value").is_finite())  # JSON has no NaN
    rows = known.with_columns(name=quoted(known["name"]))
    fields: Fields = {"ph": "C", "name": pl.col("name"), "pid": pl.col("device"), "ts": microseconds(pl.col("at_ns"))}
    yield from lines(rows, {**fields, "args": members({"value": pl.col("value")})})
