"""Host events that torch recorded on a CPU, with GPU kernels laid under their ops: a run whose ops nobody made up.

What a CPU can't show is put in: each matmul launches a kernel, and with `has_own_thread` the nodes of the autograd graph run
on a thread of their own, as they do for a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulator import work
from tests.simulator.machine import AUTOGRAD, US, Run
from tests.simulator.work import Activity, Op

AGAIN = "recorded again"
"""Annotation around what a program knows to be forward work done again; it is the truth, and does not go into the run."""


MEMORY = "[memory]"


@dataclass(kw_only=True)
class Recorded:
    """A host range of the profiler, with the ranges inside it."""

    name: str
    category: str
    start_us: float
    end_us: float
    args: dict[str, Any]
    inside: list[Recorded] = field(default_factory=list)


def record(program: Callable[[], object], folder: Path) -> list[Recorded]:
    """The host events of a program on one thread, outermost first; what is allocated stands inside as events without a length."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiler:
        program()
    path = folder / "recorded.json"
    profiler.export_chrome_trace(str(path))
    return _nested(json.loads(path.read_text())["traceEvents"])


def _nested(events: Iterable[dict[str, Any]]) -> list[Recorded]:
    ranges = [
        Recorded(
            name=event["name"],
            category=event["cat"],
            start_us=event["ts"],
            end_us=event["ts"] + event.get("dur", 0),
            args=event["args"],
        )
        for event in events
        if event.get("cat") in ("cpu_op", "user_annotation") or event["name"] == MEMORY
    ]
    outermost: list[Recorded] = []
    stack: list[Recorded] = []
    for entry in sorted(ranges, key=lambda entry: (entry.start_us, -entry.end_us)):
        while stack and entry.start_us >= stack[-1].end_us:
            stack.pop()
        (stack[-1].inside if stack else outermost).append(entry)
        stack.append(entry)
    return outermost


def lay(run: Run, entries: Iterable[Recorded], *, has_own_thread: bool, is_again: bool = False) -> None:
    """Let the run's host do what was recorded, hold what was allocated, and launch a kernel in each matmul."""
    for entry in entries:
        if entry.name == MEMORY:
            run.hold(entry.args["Bytes"])
            continue
        if entry.category == "user_annotation":
            lay(run, entry.inside, has_own_thread=has_own_thread, is_again=is_again or entry.name == AGAIN)
            continue
        is_node = entry.name.startswith("autograd::engine::")
        with run.on_thread(AUTOGRAD) if is_node and has_own_thread else nullcontext(), _opened(run, entry):
            run.host(1 * US)
            lay(run, entry.inside, has_own_thread=has_own_thread, is_again=is_again)
            for kernel in kernels(entry):
                run.launch(kernel, recompute=is_again)


def _opened(run: Run, entry: Recorded) -> Any:
    args = entry.args
    op = Op(
        name=entry.name,
        shapes=args.get("Input Dims", []),
        dtypes=args.get("Input type", []),
        concrete=args.get("Concrete Inputs"),
    )
    return run.range(entry.name, op=op, sequence=args.get("Sequence number"), forward_thread=args.get("Fwd thread id"))


def kernels(entry: Recorded) -> Iterator[Activity]:
    """What the op launches on a GPU, as far as it is a matmul.

    Checkpointing that is not re-entrant stops once every saved tensor is there again: inside its last op, after that has saved
    (detached) its inputs and before it computes. Such an op launches nothing.
    """
    dims = entry.args.get("Input Dims", [])
    ops = [inner for inner in entry.inside if inner.name != MEMORY]
    if ops and all(inner.name == "aten::detach" for inner in ops):
        return
    if entry.name == "aten::mm":
        (m, k), (_, n) = dims[:2]
        yield from work.mm(m, n, k).launches
    elif entry.name == "aten::addmm":
        (m, k), (_, n) = dims[1:3]
        yield from work.addmm(m, n, k).launches
    elif entry.name == "aten::bmm":
        (b, m, k), (_, _, n) = dims[:2]
        yield from work.bmm(b, m, n, k).launches
