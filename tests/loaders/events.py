"""Small Kineto events, and the many ways in which files lay them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def kernel(ts: Any, dur: Any, name: str = "gemm", *, stream: Any = 7, device: Any = 0, **args: Any) -> Event:
    arguments = {"device": device, "stream": stream, "correlation": 1, **args}
    return event("kernel", name, ts, dur, pid=0, tid=7, args={k: v for k, v in arguments.items() if v is not None})


def op(ts: Any, dur: Any, name: str = "aten::mm", **args: Any) -> Event:
    return event("cpu_op", name, ts, dur, args={"External id": 1, **args})


def call(ts: Any, dur: Any, name: str = "cudaLaunchKernel", *, correlation: int = 1) -> Event:
    return event("cuda_runtime", name, ts, dur, args={"External id": 1, "correlation": correlation})


def event(
    cat: str, name: str, ts: Any, dur: Any, *, pid: Any = 100, tid: Any = 200, args: Event | None = None
) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args or {}}


def step() -> list[Event]:
    """An op that launches a kernel through one call."""
    return [op(10, 20), call(12, 5), kernel(20, 8)]


def document(events: list[Event], **keys: Any) -> str:
    return json.dumps({"schemaVersion": 1, **keys, "traceEvents": events})


def pretty(events: list[Event]) -> str:
    """Laid out as torch does: the events on lines of their own, indented."""
    return '{"schemaVersion": 1, "traceEvents": [\n' + ",\n".join(_indented(event) for event in events) + "\n]}"


def write(folder: Path, text: str | bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def _indented(event: Event) -> str:
    return "\n".join("  " + line for line in json.dumps(event, indent=2).splitlines())
