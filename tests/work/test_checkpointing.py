"""HFU and recomputation of both variants of activation checkpointing, on host events that torch records in the test.

Two layers of a transformer run on the CPU; under each matmul the simulator lays a GPU kernel. The FLOPs are worked out by hand
from the sizes, and which of them are done again the recorded program says itself. Skips where torch is not installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from tests.fixes.build import analyses_of
from tests.simulator import Run, kineto, ledger
from tests.simulator.recorded import AGAIN, Recorded, lay, record
from tests.simulator.work import H100
from trace_doctor import analyze
from trace_doctor.classifiers.capacity import recomputed as saved_by_recomputing
from trace_doctor.fixes.case import case_of
from trace_doctor.loaders.source import load
from trace_doctor.options import Limits
from trace_doctor.work import kernels, operators

torch = pytest.importorskip("torch")

BATCH, TOKENS, WIDTH, VOCABULARY, LAYERS = 2, 64, 128, 256, 2
ROWS = BATCH * TOKENS


def linear(inputs: int, outputs: int) -> int:
    """FLOPs of a linear layer on every token."""
    return 2 * ROWS * inputs * outputs


SCORES = 2 * BATCH * TOKENS * TOKENS * WIDTH
"""FLOPs of queries times keys, and of scores times values."""
DOWN = linear(4 * WIDTH, WIDTH)
LAYER = linear(WIDTH, 3 * WIDTH) + 2 * SCORES + linear(WIDTH, WIDTH) + linear(WIDTH, 4 * WIDTH) + DOWN
MODEL = 3 * (LAYERS * LAYER + linear(WIDTH, VOCABULARY))
"""Forward once, and each matmul has two in the backward pass."""


class Variant(NamedTuple):
    """A way to checkpoint, and the FLOPs that are done again."""

    use_reentrant: bool | None
    """Null: no checkpointing."""
    again: int


VARIANTS = {
    "none": Variant(None, 0),
    "reentrant": Variant(True, LAYERS * LAYER),
    # stops early: the last matmul has saved its inputs before it computes, and nothing after it saves any
    "not reentrant": Variant(False, LAYERS * (LAYER - DOWN)),
}


def training(use_reentrant: bool | None) -> Callable[[], None]:
    """A step of a small transformer that annotates what it runs again."""
    from torch import nn
    from torch.profiler import record_function
    from torch.utils.checkpoint import checkpoint

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.has_run = False

        def forward(self, x: Any) -> Any:
            name, self.has_run = AGAIN if self.has_run else "first", True
            with record_function(name):
                q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
                x = x + self.out((q @ k.transpose(1, 2) / math.sqrt(WIDTH)).softmax(dim=-1) @ v)
                return x + self.down(nn.functional.gelu(self.up(x)))

    torch.manual_seed(0)
    layers = nn.ModuleList(Layer() for _ in range(LAYERS)).bfloat16()
    head = nn.Linear(WIDTH, VOCABULARY).bfloat16()
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        hidden = x
        for layer in layers:
            hidden = layer(hidden) if use_reentrant is None else checkpoint(layer, hidden, use_reentrant=use_reentrant)
        head(hidden).square().mean().backward()

    return step


def penalised() -> None:
    """A step whose loss holds a gradient: its backward pass goes through a backward pass."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))
    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    scores = layers(x) @ x.transpose(1, 2)
    (slope,) = torch.autograd.grad(scores.square().mean(), x, create_graph=True)
    slope.square().sum().backward()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Recorded]]:
    """The host events of each variant."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("recorded")
    programs = {name: training(variant.use_reentrant) for name, variant in VARIANTS.items()}
    return {name: record(program, folder) for name, program in {**programs, "penalty": penalised}.items()}


@pytest.fixture(params=[False, True], ids=["one thread", "autograd's own thread"])
def has_own_thread(request: pytest.FixtureRequest) -> bool:
    """Where the backward pass runs: on a CPU on the caller's thread, for a GPU on another."""
    return bool(request.param)


def simulated(entries: list[Recorded], *, has_own_thread: bool) -> Run:
    """Two steps of what was recorded."""
    run = Run()
    for _ in range(2):
        with run.step():
            lay(run, entries, has_own_thread=has_own_thread)
            run.synchronise()
    return run


def estimated(run: Run, folder: Path) -> pl.DataFrame:
    """What trace_doctor knows of each kernel's work."""
    return operators.estimate(kernels.classify(load(kineto.write(run, folder / "t.json"))))


@pytest.mark.parametrize("name", VARIANTS)
def test_each_kernel_is_known_for_model_or_recomputation(
    name: str, recorded: dict[str, list[Recorded]], has_own_thread: bool, tmp_path: Path
) -> None:
    run = simulated(recorded[name], has_own_thread=has_own_thread)
    found = estimated(run, tmp_path)
    assert found["recompute"].to_list() == [ran.recompute for ran in run.ran]
    assert found["flops"].to_list() == [ran.work.flops for ran in run.ran]
    assert found.filter("recompute")["flops"].sum() == 2 * VARIANTS[name].again
    assert found.filter(~pl.col("recompute"))["flops"].sum() == 2 * MODEL


@pytest.mark.parametrize("name", VARIANTS)
def test_mfu_leaves_out_what_hfu_counts(
    name: str, recorded: dict[str, list[Recorded]], has_own_thread: bool, tmp_path: Path
) -> None:
    run = simulated(recorded[name], has_own_thread=has_own_thread)
    report = analyze([kineto.write(run, tmp_path / "t.json")])
    known = ledger.of(run)
    rows = {(str(row.wall), row.cause): row.time_ns for row in report.ledger}
    assert ledger.near(rows, known) == known
    peak, window_ns = H100.peak_flops["bf16"], report.window.duration_ns
    model_ns, again_ns = 2e9 * MODEL / peak, 2e9 * VARIANTS[name].again / peak
    # the rows are whole nanoseconds
    assert report.metrics.mfu == pytest.approx(model_ns / window_ns, abs=1 / window_ns)
    assert report.metrics.hfu == pytest.approx((model_ns + again_ns) / window_ns, abs=2 / window_ns)


def test_double_backward_repeats_nothing(
    recorded: dict[str, list[Recorded]], has_own_thread: bool, tmp_path: Path
) -> None:
    run = simulated(recorded["penalty"], has_own_thread=has_own_thread)
    found = estimated(run, tmp_path)
    assert found["flops"].null_count() == 0
    assert len(found) > 2 * 3 * 3
    assert not found["recompute"].any()


def held_after_forward(run: Run) -> int:
    """What tensors hold as the first backward pass begins."""
    begins_ns = min(entry.start_ns for entry in run.ranges if entry.name.startswith("autograd::engine"))
    return [held.allocated_bytes for held in run.held if held.at_ns <= begins_ns][-1]


@pytest.mark.parametrize("name", ["reentrant", "not reentrant"])
def test_what_recomputation_saves_is_what_forward_holds_without_it(
    name: str, recorded: dict[str, list[Recorded]], has_own_thread: bool
) -> None:
    with_all, with_less = (simulated(recorded[one], has_own_thread=has_own_thread) for one in ("none", name))
    (analysis,) = analyses_of(with_less)
    found = saved_by_recomputing(analysis, case_of(analysis, Limits()).kernels, steps=2)
    assert found and found.regions == LAYERS
    saved_bytes = held_after_forward(with_all) - held_after_forward(with_less)
    # only matmuls have kernels here: what lies before the first and after the last of a layer is not in its region
    assert abs(found.saved_bytes - saved_bytes) < 0.1 * saved_bytes
