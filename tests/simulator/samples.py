"""The traces of sample_traces/: `python -m tests.simulator.samples` writes them anew, the same bytes every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.simulator import kineto, nsight
from tests.simulator.gpt import Gpt, Habits, train
from tests.simulator.machine import MS, Run

FOLDER = Path(__file__).parents[2] / "sample_traces"
STEPS = 4

BIG = Gpt(layers=4, width=2048, heads=16, vocabulary=50_304, batch=8, tokens=2048)


def healthy() -> Run:
    """Large matmuls, fused attention and optimizer, data there when needed."""
    return trained(BIG, Habits())


def memory_bound() -> Run:
    """Attention by parts: scores, softmax and dropout go through memory, and matmuls are narrow."""
    return trained(replace(BIG, width=1024, batch=4, has_flash=False), Habits())


def launch_bound() -> Run:
    """So small a model that the host can't launch its kernels as fast as they end."""
    return trained(Gpt(layers=6, width=256, heads=4, vocabulary=8_192, batch=2, tokens=256), Habits())


def communication_bound() -> Run:
    """Rank 0 of 8: gradients are all-reduced at a tenth of what NVLink carries, longer than the backward pass can hide."""
    run = Run(rank=0, world_size=8)
    train(run, replace(BIG, batch=4), Habits(bucket_rate=45e9), steps=STEPS)
    return run


def input_starved() -> Run:
    """Every batch comes late, from a DataLoader that needs 40 ms, through pageable memory."""
    return trained(replace(BIG, batch=4), Habits(loading_ns=40 * MS, pins_memory=False))


def trained(gpt: Gpt, habits: Habits) -> Run:
    """A run on one GPU."""
    run = Run()
    train(run, gpt, habits, steps=STEPS)
    return run


SAMPLES = {
    "gpt-healthy": healthy,
    "gpt-memory-bound": memory_bound,
    "gpt-launch-bound": launch_bound,
    "gpt-communication-bound": communication_bound,
    "gpt-input-starved": input_starved,
}


def main() -> None:
    """Write all samples."""
    FOLDER.mkdir(exist_ok=True)
    for name, program in SAMPLES.items():
        run = program()
        for path in (kineto.write(run, FOLDER / f"{name}.json.gz"), nsight.write(FOLDER / f"{name}.sqlite", run)):
            print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
