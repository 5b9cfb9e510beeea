"""Record pairs of traces, before and after one change, with the step time that no profiler slowed down.

    python sample_traces/record_gpu.py                      # on the CUDA GPU: under five minutes, a few MB in recordings/
    python sample_traces/record_gpu.py --toy --device cpu   # seconds; CPU traces without GPU work, to try the script

Needs torch 2.4 or newer and nothing else. Each pair changes one thing of a small training: PAIRS says which. `index.json` beside
the traces holds for each of them the unprofiled time of a step, so that what trace-doctor says can be held against what the
change really won. A pair that can't run (no compiler for torch.compile, too little memory, time used up) is left out, and the
index says why.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

STEPS = 3
"""Steps in each trace."""
WARM_UP = 3
BLOCKS = 3
"""Unprofiled steps are timed in this many blocks, of which the median counts."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the programs are, and how long each is timed."""

    width: int
    layers: int
    heads: int
    tokens: int
    batch: int
    vocabulary: int
    pixels: int
    channels: int
    decoding: int
    """Numbers that the loader's dataset sorts for a sample: its "decoding"."""
    block_s: float
    """Seconds that one block of unprofiled steps lasts, about."""


FULL = Size(
    width=1024, layers=4, heads=16, tokens=1024, batch=8, vocabulary=32_000, pixels=64, channels=256, decoding=200_000,
    block_s=0.5,
)  # fmt: skip
TOY = Size(
    width=32, layers=1, heads=2, tokens=16, batch=2, vocabulary=64, pixels=8, channels=8, decoding=1_000, block_s=0.005
)


@dataclass(frozen=True, kw_only=True)
class Program:
    """One training: a step of it, and how many samples the step takes."""

    step: Callable[[], None]
    samples: int


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One program before and after a change."""

    name: str
    change: str
    program: Callable[..., Program]
    before: dict[str, Any]
    after: dict[str, Any]


class Block(nn.Module):
    """A layer of a transformer, with attention fused or by parts."""

    def __init__(self, size: Size, *, is_fused: bool) -> None:
        super().__init__()
        self.heads, self.is_fused = size.heads, is_fused
        self.norms = nn.ModuleList(nn.LayerNorm(size.width) for _ in range(2))
        self.qkv, self.out = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def attention(self, x: Tensor) -> Tensor:
        """Causal self-attention."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if self.is_fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(later, -math.inf)
            mixed = scores.softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        """Attention and feed-forward part, each with its residual."""
        x = x + self.attention(self.norms[0](x))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """A small language model."""

    def __init__(self, size: Size, *, is_fused: bool, is_checkpointed: bool) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size, is_fused=is_fused) for _ in range(size.layers))
        self.head = nn.Linear(size.width, size.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """The loss of predicting each next token."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return F.cross_entropy(self.head(x[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def language(
    size: Size,
    device: torch.device,
    *,
    is_compiled: bool = False,
    is_mixed: bool = True,
    has_fused_attention: bool = True,
    has_fused_optimizer: bool = True,
    is_checkpointed: bool = False,
    reads_loss: bool = False,
    batch: int | None = None,
    tokens: int | None = None,
) -> Program:
    """Train a small GPT on random tokens that are on the device already."""
    model: nn.Module = Gpt(size, is_fused=has_fused_attention, is_checkpointed=is_checkpointed).to(device)
    kind = {"fused": True} if has_fused_optimizer else {"foreach": False, "fused": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **kind)
    run = torch.compile(model) if is_compiled else model
    data = torch.randint(size.vocabulary, (batch or size.batch, tokens or size.tokens), device=device)

    def step() -> None:
        with mixed(device) if is_mixed else nullcontext():
            loss = run(data)
        if reads_loss:
            loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Program(step=step, samples=len(data))


def images(size: Size, device: torch.device, *, is_channels_last: bool) -> Program:
    """Train a stack of convolutions, the layout of images and weights as told."""
    layout = torch.channels_last if is_channels_last else torch.contiguous_format
    model, data = convolutions(size).to(device, memory_format=layout), torch.randn(picture(size), device=device)
    data = data.to(memory_format=layout)
    return Program(step=lambda: classify(model, data), samples=len(data))


def loading(size: Size, device: torch.device, *, workers: int) -> Program:
    """Train on samples that the host must prepare, in this process or in workers."""
    model = convolutions(size).to(device)
    loader = DataLoader(
        Decoded(size),
        batch_size=size.batch,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=on_gpu(device),
    )
    batches = epochs(loader)
    return Program(step=lambda: classify(model, next(batches).to(device, non_blocking=True)), samples=size.batch)


def epochs(loader: DataLoader[Tensor]) -> Iterator[Tensor]:
    """Batches without end."""
    while True:
        yield from loader


def copying(size: Size, device: torch.device, *, is_pinned: bool) -> Program:
    """Train on images that come from the host each step."""
    model, data = convolutions(size).to(device), torch.randn(picture(size))
    if is_pinned and on_gpu(device):
        data = data.pin_memory()
    return Program(step=lambda: classify(model, data.to(device, non_blocking=is_pinned)), samples=len(data))


class Decoded(Dataset[Tensor]):
    """Images whose preparation keeps a core busy."""

    def __init__(self, size: Size) -> None:
        self.size = size

    def __len__(self) -> int:
        return 64 * self.size.batch

    def __getitem__(self, place: int) -> Tensor:
        torch.randn(self.size.decoding, generator=torch.Generator().manual_seed(place)).sort()
        return torch.randn(picture(self.size)[1:])


def picture(size: Size) -> tuple[int, int, int, int]:
    """Shape of a batch of images."""
    return (4 * size.batch, 3, size.pixels, size.pixels)


def convolutions(size: Size) -> nn.Sequential:
    """Convolutions with batch norm."""
    layers: list[nn.Module] = []
    for place in range(size.layers):
        layers += [nn.Conv2d(size.channels if place else 3, size.channels, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(size.channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def classify(model: nn.Module, data: Tensor) -> None:
    """Forward and backward, gradients thrown away."""
    with mixed(data.device):
        loss = model(data).square().mean()
    loss.backward()
    model.zero_grad()


def mixed(device: torch.device) -> torch.autocast:
    """BF16 where it may be, FP32 where it must."""
    return torch.autocast(device.type, torch.bfloat16)


def on_gpu(device: torch.device) -> bool:
    """Whether there is a GPU to wait for."""
    return device.type == "cuda"


PAIRS = (
    Pair(
        name="compile",
        change="eager -> torch.compile",
        program=language,
        before={},
        after={"is_compiled": True},
    ),
    Pair(
        name="precision",
        change="FP32 -> BF16 autocast",
        program=language,
        before={"is_mixed": False},
        after={},
    ),
    Pair(
        name="attention",
        change="attention by parts -> scaled_dot_product_attention",
        program=language,
        before={"has_fused_attention": False},
        after={},
    ),
    Pair(
        name="optimizer",
        change="AdamW tensor by tensor -> AdamW(fused=True)",
        program=language,
        before={"has_fused_optimizer": False, "batch": 1},
        after={"batch": 1},
    ),
    Pair(
        name="loader",
        change="0 -> 4 DataLoader workers",
        program=loading,
        before={"workers": 0},
        after={"workers": 4},
    ),
    Pair(
        name="item",
        change="loss.item() every step -> never",
        program=language,
        before={"reads_loss": True, "batch": 1, "tokens": 128},
        after={"batch": 1, "tokens": 128},
    ),
    Pair(
        name="pinned",
        change="pageable -> pinned, non-blocking input copies",
        program=copying,
        before={"is_pinned": False},
        after={"is_pinned": True},
    ),
    Pair(
        name="checkpointing",
        change="activation checkpointing -> none",
        program=language,
        before={"is_checkpointed": True},
        after={},
    ),
    Pair(
        name="layout",
        change="NCHW -> channels last",
        program=images,
        before={"is_channels_last": False},
        after={"is_channels_last": True},
    ),
    Pair(
        name="batch",
        change="batch 1 -> large",
        program=language,
        before={"batch": 1},
        after={},
    ),
)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One trace and the time of its program's steps without a profiler."""

    trace: str
    step_time_ns: int
    """Median of the blocks."""
    block_step_times_ns: list[int]
    samples_per_step: int


def record(program: Program, path: Path, device: torch.device, *, block_s: float) -> Recording:
    """Warm up, time unprofiled steps, then profile some."""
    for _ in range(WARM_UP):
        program.step()
    count = min(200, max(2, round(block_s / seconds(program, 1, device))))
    blocks = [round(1e9 * seconds(program, count, device) / count) for _ in range(BLOCKS)]
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu(device) else [])]
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        record_shapes=True,
    ) as profiler:
        for _ in range(1 + STEPS):
            program.step()
            profiler.step()
    return Recording(
        trace=path.name,
        step_time_ns=round(statistics.median(blocks)),
        block_step_times_ns=blocks,
        samples_per_step=program.samples,
    )


def seconds(program: Program, steps: int, device: torch.device) -> float:
    """Time that some steps take together, from an idle GPU to an idle GPU."""
    settle(device)
    begin = time.perf_counter()
    for _ in range(steps):
        program.step()
    settle(device)
    return time.perf_counter() - begin


def settle(device: torch.device) -> None:
    """Wait for the GPU."""
    if on_gpu(device):
        torch.cuda.synchronize(device)


def record_pair(pair: Pair, size: Size, device: torch.device, folder: Path) -> dict[str, Any]:
    """Both recordings of a pair and what the change won a sample; why not, where it can't run."""
    entry: dict[str, Any] = {"name": pair.name, "change": pair.change}
    try:
        for side, choices in (("before", pair.before), ("after", pair.after)):
            forget(device)
            torch.manual_seed(0)
            path = folder / f"{pair.name}-{side}.json.gz"
            entry[side] = asdict(record(pair.program(size, device, **choices), path, device, block_s=size.block_s))
    except Exception as error:  # noqa: BLE001  a GPU is borrowed for minutes: one pair that fails must not cost the others
        return {"name": pair.name, "change": pair.change, "skipped": f"{type(error).__name__}: {str(error)[:300]}"}
    return entry | {"speedup": round(per_sample(entry["before"]) / per_sample(entry["after"]), 3)}


def per_sample(recording: dict[str, Any]) -> float:
    """Nanoseconds of a step for each sample in it."""
    return float(recording["step_time_ns"] / recording["samples_per_step"])


def forget(device: torch.device) -> None:
    """Free what the last program held."""
    if "torch._dynamo" in sys.modules:  # seconds to import for nothing
        torch.compiler.reset()
    if on_gpu(device):
        gc.collect()
        torch.cuda.empty_cache()


def record_all(pairs: list[Pair], size: Size, device: torch.device, folder: Path, *, limit_s: float) -> dict[str, Any]:
    """Record the pairs, and write the index after each. A pair that would begin after the limit is skipped."""
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(device) if on_gpu(device) else "CPU",
        "is_toy": size == TOY,
        "steps_per_trace": STEPS,
        "pairs": [],
    }
    begin = time.perf_counter()
    for pair in pairs:
        is_late = time.perf_counter() - begin > limit_s
        skipped = {"name": pair.name, "change": pair.change, "skipped": f"the limit of {limit_s:g} s was reached"}
        entry = skipped if is_late else record_pair(pair, size, device, folder)
        index["pairs"].append(entry)
        (folder / "index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        print(f"{pair.name}: {entry.get('skipped') or entry['speedup']}")
    return index


def main() -> int:
    """Command line; 1 where nothing could be recorded."""
    names = [pair.name for pair in PAIRS]
    parser = argparse.ArgumentParser(description="Record pairs of traces, before and after one change.")
    parser.add_argument("-o", "--out", type=Path, default=Path("recordings"), help="folder to write to")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument(
        "--toy", action="store_true", help="as small as can be: to try the script, not to learn from it"
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PAIR", help=", ".join(names))
    parser.add_argument("--skip", nargs="+", choices=names, default=[], metavar="PAIR", help="pairs to leave out")
    parser.add_argument("--limit", type=float, default=240, help="seconds after which no further pair begins")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    if on_gpu(device) and not torch.cuda.is_available():
        parser.error("torch finds no CUDA GPU; to try the script without one: --toy --device cpu")
    if asked.toy:
        torch.set_num_threads(1)
    pairs = [pair for pair in PAIRS if pair.name in asked.only and pair.name not in asked.skip]
    index = record_all(pairs, TOY if asked.toy else FULL, device, asked.out, limit_s=asked.limit)
    return 0 if any("before" in entry for entry in index["pairs"]) else 1


if __name__ == "__main__":
    sys.exit(main())
