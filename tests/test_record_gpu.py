"""sample_traces/record_gpu.py at toy size on the CPU: what it writes, and that each pair differs by what it says.

`compile` is left out: Inductor needs a C++ compiler and half a minute of it. Skips where torch is not installed.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import ROOT

torch = pytest.importorskip("torch")

SCRIPT = ROOT / "sample_traces" / "record_gpu.py"
PAIRS = ["precision", "attention", "optimizer", "loader", "item", "pinned", "checkpointing", "layout", "batch"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a toy run wrote."""
    into = tmp_path_factory.mktemp("recordings")
    command = [sys.executable, SCRIPT, "--toy", "--device", "cpu", "--out", into, "--skip", "compile"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return into


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module."""
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("record_gpu", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["record_gpu"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["record_gpu"]


def index(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "index.json").read_text())  # type: ignore[no-any-return]


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    with gzip.open(folder / f"{name}.json.gz") as file:
        return json.load(file)["traceEvents"]  # type: ignore[no-any-return]


def counted(folder: Path, name: str, start: str) -> int:
    """Events of the trace whose name begins so."""
    return sum(event["name"].startswith(start) for event in events(folder, name))


def test_index_holds_the_unprofiled_times(folder: Path) -> None:
    found = index(folder)
    assert found["is_toy"] is True
    assert [entry["name"] for entry in found["pairs"]] == PAIRS
    for entry in found["pairs"]:
        sides = [entry["before"], entry["after"]]
        times = [side["step_time_ns"] / side["samples_per_step"] for side in sides]
        assert [side["trace"] for side in sides] == [f"{entry['name']}-{side}.json.gz" for side in ("before", "after")]
        assert all(side["step_time_ns"] == sorted(side["block_step_times_ns"])[1] > 0 for side in sides)
        assert entry["speedup"] == round(times[0] / times[1], 3)


def test_each_trace_holds_three_steps_and_is_small(folder: Path) -> None:
    traces = sorted(folder.glob("*.json.gz"))
    assert len(traces) == 2 * len(PAIRS)
    assert sum(path.stat().st_size for path in traces) < 3_000_000
    for path in traces:
        assert counted(folder, path.name.removesuffix(".json.gz"), "ProfilerStep#") == 3


@pytest.mark.parametrize(
    ("pair", "event", "before", "after"),
    [
        # autocast calls an op again with its inputs cast
        ("attention", "aten::scaled_dot_product_attention", 0, 2 * 3),
        ("attention", "aten::_softmax_backward_data", 3, 0),
        ("optimizer", "aten::_fused_adamw_", 0, 3),
        ("loader", "enumerate(DataLoader)#_SingleProcessDataLoaderIter", 3, 0),
        ("loader", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter", 0, 3),
        # forward, backward, and once more forward with checkpointing
        ("checkpointing", "aten::gelu", 3 + 3 + 3, 3 + 3),
    ],
)
def test_one_thing_differs(folder: Path, pair: str, event: str, before: int, after: int) -> None:
    assert counted(folder, f"{pair}-before", event) == before
    assert counted(folder, f"{pair}-after", event) == after


def test_the_loss_is_read_once_a_step(folder: Path) -> None:
    # the fused AdamW reads its step counts on a CPU, too
    assert counted(folder, "item-before", "aten::item") - counted(folder, "item-after", "aten::item") == 3


def test_precision_layout_and_batch_differ_in_their_inputs(folder: Path) -> None:
    def inputs(name: str, op: str, field: str) -> list[Any]:
        return [event["args"][field][0] for event in events(folder, name) if event["name"] == op]

    assert set(inputs("precision-before", "aten::mm", "Input type")) == {"float"}
    assert set(inputs("precision-after", "aten::mm", "Input type")) == {"c10::BFloat16"}
    # strides of [8, 3, 8, 8]
    assert inputs("layout-before", "aten::convolution", "Input Strides") == [[192, 64, 8, 1]] * 3
    assert inputs("layout-after", "aten::convolution", "Input Strides") == [[192, 1, 24, 3]] * 3
    assert inputs("batch-before", "aten::embedding", "Input type") == inputs(
        "batch-after", "aten::embedding", "Input type"
    )
    assert [entry["after"]["samples_per_step"] for entry in index(folder)["pairs"] if entry["name"] == "batch"] == [2]


def test_a_pair_that_fails_costs_no_other(script: ModuleType, tmp_path: Path) -> None:
    def broken(size: object, device: object, **choices: object) -> None:
        raise RuntimeError("no C++ compiler")

    device = torch.device("cpu")
    good = next(pair for pair in script.PAIRS if pair.name == "pinned")
    bad = script.Pair(name="bad", change="", program=broken, before={}, after={})
    found = script.record_all([bad, good], script.TOY, device, tmp_path, limit_s=300)
    assert found == index(tmp_path)
    assert found["pairs"][0] == {"name": "bad", "change": "", "skipped": "RuntimeError: no C++ compiler"}
    assert "before" in found["pairs"][1]


def test_no_pair_begins_after_the_limit(script: ModuleType, tmp_path: Path) -> None:
    found = script.record_all(list(script.PAIRS), script.TOY, torch.device("cpu"), tmp_path, limit_s=-1)
    assert [entry["skipped"] for entry in found["pairs"]] == ["the limit of -1 s was reached"] * len(script.PAIRS)


def test_pairs_are_those_that_the_readme_lists(script: ModuleType) -> None:
    readme = (ROOT / "sample_traces" / "README.md").read_text()
    assert [pair.name for pair in script.PAIRS if f"`{pair.name}`" not in readme] == []
    assert [pair.name for pair in script.PAIRS if pair.name != "compile"] == PAIRS
