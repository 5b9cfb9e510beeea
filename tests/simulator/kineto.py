"""A simulated run as torch.profiler 2.13 writes it: layout, key order and metadata follow recordings of real programs."""

from __future__ import annotations

import json
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from gzip import GzipFile
from itertools import count
from math import prod
from pathlib import Path
from typing import IO, Any

from tests.simulator.machine import AUTOGRAD, MAIN, PROCESS, WATCHDOG, Call, Held, Ran, Range, Run

BASE_NS = 1_790_857_026_000_000_000
CLOCK_NS = 5_132_197_233_084_097
"""Where the run's zero stands on the trace's clock: far from zero, as in every real trace."""

ADDRESS = 139_989_599_867_904
"""Of every allocation: nobody looks."""

CALLBACKS = {
    "cudaLaunchKernel": 211,
    "cuLaunchKernelEx": 652,
    "cudaGraphLaunch": 311,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaDeviceSynchronize": 165,
    "cudaStreamSynchronize": 131,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaMalloc": 20,
    "cudaFree": 22,
}
THREADS = {MAIN: "python", AUTOGRAD: "pt_autograd_0", WATCHDOG: "pt_nccl_watchdg"}

Event = dict[str, Any]


def write(run: Run, path: Path) -> Path:
    """Write the run to `path`; `.gz` is compressed, the same bytes every time."""
    with path.open("wb") as file, _packed(file) if path.suffix == ".gz" else nullcontext(file) as out:
        out.writelines(piece.encode() for piece in pieces(run))
    return path


def _packed(file: IO[bytes]) -> GzipFile:
    return GzipFile("", "wb", 9, file, mtime=0)


def pieces(run: Run) -> Iterator[str]:
    """The file's text, an event at a time."""
    yield f'{_head(run)}"traceEvents": [\n    '
    for number, event in enumerate(_events(run)):
        yield ("," if number else "") + _laid_out(event)
    yield '\n  ],"traceName": "/tmp/trace.json" }'


def _head(run: Run) -> str:
    """The fields before the events, one a line as the profiler writes them."""
    ranks = list(range(run.world_size))
    distributed = {
        "backend": "nccl",
        "rank": run.rank,
        "world_size": run.world_size,
        "pg_count": 1,
        "pg_config": [
            {
                "pg_name": "0",
                "pg_desc": "default_pg",
                "backend_config": "cuda:nccl",
                "pg_size": run.world_size,
                "ranks": ranks,
            }
        ],
        "nccl_version": "2.28.9",
    }
    fields = {
        "schemaVersion": 1,
        "deviceProperties": [_device(run, number) for number in range(run.node_devices)],
        "cupti_version": 26,
        "cuda_runtime_version": 12080,
        "cuda_driver_version": 12080,
        **({"distributedInfo": distributed} if run.rank is not None else {}),
        "trace_id": "F6D8D67C074048E09A343B4069299F58",
        **({"record_shapes": 1} if run.records_shapes else {}),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }
    return " {\n" + "".join(f"    {json.dumps(key)}: {json.dumps(value)},\n" for key, value in fields.items()) + "    "


def _device(run: Run, number: int) -> Event:
    major, minor = run.gpu.compute_capability
    return {
        "id": number,
        "name": run.gpu.name,
        "totalGlobalMem": run.gpu.memory_bytes,
        "computeMajor": major,
        "computeMinor": minor,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65536,
        "warpSize": 32,
        "sharedMemPerBlock": 49152,
        "numSms": run.gpu.multiprocessors,
        "regsPerMultiprocessor": 65536,
        "sharedMemPerBlockOptin": 232448,
        "sharedMemPerMultiprocessor": 233472,
    }


def _laid_out(event: Event) -> str:
    """One key a line, `args` after a comma of its own, the entries of `args` on one line."""
    lines = ",\n".join(
        f"    {json.dumps(k)}: {v if k in ('ts', 'dur') else json.dumps(v)}" for k, v in event.items() if k != "args"
    )
    if "args" not in event:
        return f"\n  {{\n{lines}\n  }}"
    args = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in event["args"].items())
    return f'\n  {{\n{lines}\n    ,\n    "args": {{\n      {args}\n    }}\n  }}'


def _events(run: Run) -> Iterator[Event]:
    yield from _names(run)
    number = count()
    for entry in sorted(run.ranges, key=lambda entry: entry.start_ns):
        if run.records_host or entry.category == "user_annotation":
            yield _range(entry, next(number), shapes=run.records_shapes)
    for held in run.held:
        yield _memory(held, next(number))
    if run.records_host:
        for call in run.calls:
            yield from _call(call)
    for ran in run.ran:
        yield _activity(run, ran)
        if ran.call:
            yield _flow("f", ran.correlation, 0, ran.stream, ran.start_ns)
    yield from _marks_on_gpu(run)
    yield from _frame(run)


def _microseconds(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _slice(
    category: str, name: str, pid: int | str, tid: int | str, start_ns: int, end_ns: int, args: Event | None
) -> Event:
    event = {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": _microseconds(CLOCK_NS + start_ns),
        "dur": _microseconds(end_ns - start_ns),
    }
    return event if args is None else {**event, "args": args}


def _range(entry: Range, number: int, *, shapes: bool) -> Event:
    if entry.category == "overhead":
        return _slice("overhead", entry.name, -1, 0, entry.start_ns, entry.end_ns, None)
    args: Event = {"External id": entry.external}
    if entry.sequence is not None:
        args |= {"Sequence number": entry.sequence, "Fwd thread id": entry.forward_thread}
    args["Record function id"] = 0
    if entry.op and shapes:
        args["Concrete Inputs"] = entry.op.concrete or [""] * len(entry.op.shapes)
        args["Input type"] = entry.op.dtypes
        args["Input Strides"] = [_strides(shape) for shape in entry.op.shapes]
        args["Input Dims"] = entry.op.shapes
    args["Ev Idx"] = number
    return _slice(entry.category, entry.name, PROCESS, entry.thread, entry.start_ns, entry.end_ns, args)


def _strides(shape: list[Any]) -> list[Any]:
    """Of a contiguous tensor, or of each in a list of them."""
    if shape and isinstance(shape[0], list):
        return [_strides(one) for one in shape]
    return [prod(shape[place + 1 :]) for place in range(len(shape))]


def _memory(held: Held, number: int) -> Event:
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": PROCESS,
        "tid": held.thread,
        "ts": _microseconds(CLOCK_NS + held.at_ns),
        "args": {
            "Total Reserved": held.reserved_bytes,
            "Total Allocated": held.allocated_bytes,
            "Bytes": held.change_bytes,
            "Addr": ADDRESS,
            "Device Id": 0,
            "Device Type": 1,
            "Ev Idx": number,
        },
    }


def _call(call: Call) -> Iterator[Event]:
    category = "cuda_driver" if call.name.startswith("cu") and not call.name.startswith("cuda") else "cuda_runtime"
    args = {"External id": call.external} if call.external else {}
    args |= {"cbid": CALLBACKS.get(call.name, 0), "correlation": call.correlation}
    yield _slice(category, call.name, PROCESS, call.thread, call.start_ns, call.end_ns, args)
    if call.launches:
        yield _flow("s", call.correlation, PROCESS, call.thread, call.start_ns)


def _flow(phase: str, number: int, pid: int, tid: int, at_ns: int) -> Event:
    event = {
        "ph": phase,
        "id": number,
        "pid": pid,
        "tid": tid,
        "ts": _microseconds(CLOCK_NS + at_ns),
        "cat": "ac2g",
        "name": "ac2g",
    }
    return event | ({"bp": "e"} if phase == "f" else {})


def _activity(run: Run, ran: Ran) -> Event:
    work = ran.work
    args: Event = {"External id": ran.external} if ran.external else {}
    place = {"device": 0, "context": 1, "stream": ran.stream, "correlation": ran.correlation}
    if work.kind in ("copy", "set"):
        seconds = max(ran.end_ns - ran.start_ns, 1) / 1e9
        args |= {**place, "bytes": work.bytes_moved, "memory bandwidth (GB/s)": (work.bytes_moved or 0) / seconds / 1e9}
        category = "gpu_memcpy" if work.kind == "copy" else "gpu_memset"
    else:
        warps = prod(work.grid) * prod(work.block) / 32 / run.gpu.multiprocessors
        args |= {
            "queued": 0,
            **place,
            "registers per thread": 64,
            "shared memory": 0,
            "blocks per SM": round(prod(work.grid) / run.gpu.multiprocessors, 6),
            "warps per SM": round(warps, 6),
            "grid": list(work.grid),
            "block": list(work.block),
            "est. achieved occupancy %": min(100, round(100 * warps / 64)),
            **(work.collective or {}),
        }
        category = "kernel"
    return _slice(category, work.name, 0, ran.stream, ran.start_ns, ran.end_ns, args)


def _marks_on_gpu(run: Run) -> Iterator[Event]:
    """Steps as the profiler draws them over the GPU's streams: a trap, for they are no work."""
    starts = [step.start_ns for step in run.steps]
    inside: dict[tuple[int, int], list[Ran]] = defaultdict(list)
    for ran in run.ran:
        step = bisect(starts, ran.call.start_ns) if ran.call else 0
        if step and ran.call and ran.call.start_ns < run.steps[step - 1].end_ns:
            inside[step, ran.stream].append(ran)
    for (step, stream), mine in sorted(inside.items()):
        start_ns, end_ns = min(ran.start_ns for ran in mine), max(ran.end_ns for ran in mine)
        yield _slice("gpu_user_annotation", f"ProfilerStep#{step}", 0, stream, start_ns, end_ns, {"External id": 1})


def _names(run: Run) -> Iterator[Event]:
    def meta(name: str, pid: int, tid: int, args: Event) -> Event:
        return {"ph": "M", "name": name, "ts": _microseconds(CLOCK_NS), "pid": pid, "tid": tid, "args": args}

    threads = sorted({entry.thread for entry in run.ranges} | {call.thread for call in run.calls})
    streams = sorted({ran.stream for ran in run.ran})
    for pid, label, order in ((PROCESS, "CPU", PROCESS), (0, "GPU 0", 5_000_000)):
        yield meta("process_name", pid, 0, {"name": "python"})
        yield meta("process_labels", pid, 0, {"labels": label})
        yield meta("process_sort_index", pid, 0, {"sort_index": order})
    for stream in streams:
        yield meta("thread_name", 0, stream, {"name": f"stream {stream} "})
        yield meta("thread_sort_index", 0, stream, {"sort_index": stream})
    for thread in threads:
        yield meta("thread_name", PROCESS, thread, {"name": f"thread {thread} ({THREADS.get(thread, 'python')})"})
        yield meta("thread_sort_index", PROCESS, thread, {"sort_index": thread})


def _frame(run: Run) -> Iterator[Event]:
    """The profiler's own span and its two marks."""
    last_ns = max([run.now_ns, *(ran.end_ns for ran in run.ran)])
    yield _slice("Trace", "PyTorch Profiler (0)", "Spans", "PyTorch Profiler", 0, last_ns, {"Op count": 0})
    start, end = _microseconds(CLOCK_NS), _microseconds(CLOCK_NS + last_ns + 1_000_000)
    yield {
        "ph": "M",
        "name": "process_sort_index",
        "ts": start,
        "pid": "Spans",
        "tid": 0,
        "args": {"sort_index": 536_870_912},
    }
    yield {
        "ph": "i",
        "s": "g",
        "name": "Iteration Start: PyTorch Profiler",
        "pid": "Traces",
        "tid": "Trace PyTorch Profiler",
        "ts": start,
    }
    yield {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": end}
