"""Traces in a few words, for tests: `trace(kernel(10, 5, correlation=1), launch(2, 3, correlation=1), op(0, 8))`.

Times are in nanoseconds. Rows get their numbers in the order given, activities in the order of their start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl

from trace_doctor.trace import SCHEMAS, DeviceInfo, Meta, Thread, Trace

ROW_NUMBER = {"activities": "activity", "ops": "op", "calls": "call"}


class Row(NamedTuple):
    """A row of one of the trace's frames."""

    frame: str
    values: dict[str, Any]


def kernel(start_ns: int, duration_ns: int, name: str = "gemm", **more: Any) -> Row:
    """An activity; a compute kernel on stream 7 of device 0 unless told otherwise."""
    kind = "communication" if name.startswith(("nccl", "rccl")) else "compute"
    place = {"process": 0, "device": 0, "stream": 7, "kind": kind}
    return Row("activities", {**place, "start_ns": start_ns, "duration_ns": duration_ns, "name": name, **more})


def launch(start_ns: int, duration_ns: int, name: str = "cudaLaunchKernel", **more: Any) -> Row:
    """A host API call on thread 0."""
    return Row("calls", {"thread": 0, "start_ns": start_ns, "duration_ns": duration_ns, "name": name, **more})


def op(start_ns: int, duration_ns: int, name: str = "aten::mm", **more: Any) -> Row:
    """A host op on thread 0."""
    return Row("ops", {"thread": 0, "start_ns": start_ns, "duration_ns": duration_ns, "name": name, **more})


def mark(start_ns: int, duration_ns: int, name: str, **more: Any) -> Row:
    """A user annotation on thread 0."""
    place = {"thread": 0, "kind": "user"}
    return Row("annotations", {**place, "start_ns": start_ns, "duration_ns": duration_ns, "name": name, **more})


def step(number: int, start_ns: int, end_ns: int, **more: Any) -> Row:
    """A `ProfilerStep#N` annotation."""
    return mark(start_ns, end_ns - start_ns, f"ProfilerStep#{number}", **more)


def launched(
    start_ns: int, duration_ns: int, *, at_ns: int, correlation: int, name: str = "gemm", thread: int = 0, **more: Any
) -> list[Row]:
    """A kernel and the 1 ns call that launched it."""
    call = launch(at_ns, 1, correlation=correlation, thread=thread)
    return [kernel(start_ns, duration_ns, name, correlation=correlation, **more), call]


def trace(*rows: Row | list[Row], threads: int | tuple[int, ...] = 1, **meta: Any) -> Trace:
    """A Trace of these rows. `threads`: how many of process 0, or the process of each."""
    flat = [row for item in rows for row in (item if isinstance(item, list) else [item])]
    frames = {name: frame(name, [row.values for row in flat if row.frame == name]) for name in SCHEMAS}
    processes = (0,) * threads if isinstance(threads, int) else threads
    devices = frames["activities"]["device"].max()
    described = {
        "path": "trace.json",
        "format": "kineto",
        "size_bytes": 0,
        "sha256": "",
        "processes": tuple(str(number) for number in range(max(processes) + 1)),
        "threads": tuple(Thread(process, f"thread {number}") for number, process in enumerate(processes)),
        "devices": tuple(DeviceInfo(label=str(number)) for number in range(int(str(devices or 0)) + 1)),
        "has_ops": bool(len(frames["ops"])),
        **meta,
    }
    return Trace(meta=Meta(**described), **frames)


def frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """A frame of the trace by its name, columns that the rows don't give null."""
    schema = {column: described.dtype for column, described in SCHEMAS[name].items()}
    built = (
        pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None) if rows else pl.DataFrame(schema=schema)
    )
    missing = [pl.lit(None, dtype).alias(column) for column, dtype in schema.items() if column not in built.columns]
    built = built.with_columns(missing)
    extra = [column for column in built.columns if column not in schema]
    if name == "activities":
        built = built.sort("start_ns", maintain_order=True)
    number = ROW_NUMBER.get(name)
    if number:
        built = built.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias(number))
    return built.select(*schema, *extra)
