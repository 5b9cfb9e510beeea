"""What the simulator writes is what the profiler writes."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.simulator import US, Run, kineto
from tests.simulator.samples import SAMPLES
from tests.simulator.work import copy, mm


@pytest.fixture(scope="module")
def run() -> Run:
    run = Run(rank=0, world_size=8)
    with run.step():
        run.launch(copy("HtoD", 1_000_000))
        run.do(mm(64, 64, 64))
        with run.backward("MmBackward0"):
            run.do(mm(64, 64, 64))
        run.item()
    return run


def events(run: Run, category: str) -> list[dict[str, Any]]:
    document = json.loads("".join(kineto.pieces(run)), parse_float=Decimal)
    return [event for event in document["traceEvents"] if event.get("cat") == category]


def test_times_are_exact_nanoseconds(run: Run) -> None:
    kernels = events(run, "kernel")
    starts = [int(event["ts"] * 1000) - kineto.CLOCK_NS for event in kernels]
    assert starts == [ran.start_ns for ran in run.ran if ran.work.kind == "tensor"]
    assert [int(event["dur"] * 1000) for event in kernels] == [ran.work.duration_ns for ran in run.ran[1:3]]


def test_launches_and_activities_share_correlations(run: Run) -> None:
    calls = {
        event["args"]["correlation"]: event["ts"] for event in events(run, "cuda_runtime") + events(run, "cuda_driver")
    }
    for event in events(run, "kernel") + events(run, "gpu_memcpy"):
        assert calls[event["args"]["correlation"]] + Decimal(5) <= event["ts"]


def test_backward_runs_on_its_own_thread(run: Run) -> None:
    threads = {event["name"]: event["tid"] for event in events(run, "cpu_op") if "evaluate_function" in event["name"]}
    assert list(threads.values()) == [4310]


def test_same_bytes_every_time(tmp_path: Path) -> None:
    program = SAMPLES["gpt-launch-bound"]
    first = kineto.write(program(), tmp_path / "a.json.gz").read_bytes()
    assert kineto.write(program(), tmp_path / "b.json.gz").read_bytes() == first


def test_samples_on_disk_are_what_the_simulator_writes() -> None:
    folder = Path(__file__).parents[2] / "sample_traces"
    stale = [
        name
        for name, program in SAMPLES.items()
        if gzip.decompress((folder / f"{name}.json.gz").read_bytes()) != "".join(kineto.pieces(program())).encode()
    ]
    assert stale == []


def test_layout_is_that_of_a_recording(run: Run, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    recording = tmp_path / "recording.json"
    profiler.export_chrome_trace(str(recording))
    simulated = kineto.write(run, tmp_path / "simulated.json")

    assert keys_by_line(simulated, "aten::mm") == keys_by_line(recording, "aten::mm")
    real, ours = (json.loads(path.read_text()) for path in (recording, simulated))
    assert [key for key in ours if key in real] == [key for key in real if key in ours]
    assert {type(event["ts"]) for event in ours["traceEvents"]} == {type(event["ts"]) for event in real["traceEvents"]}
    for category in ("cpu_op", "Trace"):
        assert arguments(ours, category) >= arguments(real, category)


def keys_by_line(path: Path, name: str) -> list[list[str]]:
    """Keys on each line of the event of that name, up to its arguments."""
    lines = path.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if f'"name": "{name}"' in line)
    event = lines[at - 3 : at + 7]
    return [[part.split('"')[1] for part in line.split(", ") if part.strip().startswith('"')] for line in event]


def arguments(document: dict[str, Any], category: str) -> set[str]:
    return {key for event in document["traceEvents"] if event.get("cat") == category for key in event["args"]}


def test_a_host_less_file_knows_steps_and_activities_alone() -> None:
    run = Run(records_host=False)
    with run.step():
        run.do(mm(64, 64, 64))
        run.host(10 * US)
    document = json.loads("".join(kineto.pieces(run)))
    categories = {event.get("cat") for event in document["traceEvents"] if event["ph"] == "X"}
    assert categories == {"user_annotation", "kernel", "Trace"}
