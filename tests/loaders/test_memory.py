"""The allocator's levels, from Kineto's `[memory]` events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.loaders.events import Event, document, kernel, step, write
from tests.simulator import US, Run
from tests.simulator import kineto as simulated
from tests.simulator.kineto import CLOCK_NS
from tests.simulator.programs import MATMUL
from trace_doctor.loaders import kineto


def memory(ts: float, allocated: Any, reserved: Any, *, device: Any = 0, kind: int = 1, **more: Any) -> Event:
    args = {"Total Reserved": reserved, "Total Allocated": allocated, "Device Id": device, "Device Type": kind}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 100,
        "tid": 200,
        "ts": ts,
        "args": args,
        **more,
    }


def metrics(folder: Path, events: list[Event]) -> list[tuple[Any, ...]]:
    return kineto.load(write(folder, document(events))).metrics.select("device", "name", "at_ns", "value").rows()


def test_each_event_gives_both_levels(tmp_path: Path) -> None:
    assert metrics(tmp_path, [*step(), memory(11.5, 700, 1000), memory(12, 600, 1000)]) == [
        (0, "allocated_bytes", 11_500, 700.0),
        (0, "allocated_bytes", 12_000, 600.0),
        (0, "reserved_bytes", 11_500, 1000.0),
        (0, "reserved_bytes", 12_000, 1000.0),
    ]


def test_memory_of_the_host_is_not_the_gpus(tmp_path: Path) -> None:
    assert metrics(tmp_path, [*step(), memory(11, 700, 0, device=-1, kind=0)]) == []


def test_other_instants_and_levels_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    events = [memory(11, 700, 1000, name="[OutOfMemory]"), memory(12, None, 1000), memory(13, "much", None)]
    assert metrics(tmp_path, [*step(), *events]) == [(0, "reserved_bytes", 12_000, 1000.0)]


def test_levels_belong_to_the_gpu_of_their_number(tmp_path: Path) -> None:
    events = [
        kernel(20, 8, device=3),
        kernel(20, 8, device=5),
        memory(11, 700, None, device=5),
        memory(12, 1, 1, device=4),
    ]
    assert metrics(tmp_path, events) == [(1, "allocated_bytes", 11_000, 700.0)]


def test_merged_ranks_keep_their_own_levels(tmp_path: Path) -> None:
    events = [
        event | {"pid": f"[TP0{rank}] {event['pid']}"}
        for rank in range(2)
        for event in (*step(), memory(11, 700 + rank, None))
    ]
    assert metrics(tmp_path, events) == [(0, "allocated_bytes", 11_000, 700.0), (1, "allocated_bytes", 11_000, 701.0)]


def test_a_trace_without_such_events_has_no_levels(tmp_path: Path) -> None:
    assert metrics(tmp_path, step()) == []


def test_the_simulator_writes_what_it_holds(tmp_path: Path) -> None:
    run = Run()
    with run.step():
        run.hold(700, reserved_bytes=1000)
        run.do(MATMUL)
        at_ns = run.now_ns
        run.hold(-200)
    loaded = kineto.load(simulated.write(run, tmp_path / "trace.json"))
    start_ns = CLOCK_NS + 10_000 * US
    assert loaded.metrics.select("name", "at_ns", "value").rows() == [
        ("allocated_bytes", start_ns, 700.0),
        ("allocated_bytes", CLOCK_NS + at_ns, 500.0),
        ("reserved_bytes", start_ns, 1000.0),
        ("reserved_bytes", CLOCK_NS + at_ns, 1000.0),
    ]
