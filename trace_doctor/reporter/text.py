"""The words and number formats of every report: one place, so that all formats say the same in the same way.

Walls have a fixed order, name and colour everywhere. The colours are Okabe and Ito's, safe for colour-blind readers
(https://jfly.uni-koeln.de/color/); no report needs them to be understood.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from trace_doctor.report import Wall

LONGEST = 2_000
"""Characters of a name that a report for people may need: templates of CUTLASS kernels reach some hundred."""
Said = TypeVar("Said", bound=msgspec.Struct)

SPACE = "\u00a0"
"""Joins a number to its unit until the lines are broken; `plain` turns it into a blank."""


class WallWords(NamedTuple):
    """How a wall is called, drawn, and put into a sentence ("… points went to {sentence}")."""

    label: str
    colour: str
    sentence: str


WALLS: dict[Wall, WallWords] = {
    "mfu": WallWords("MFU", "#009E73", "model FLOPs at the peak"),
    "recompute": WallWords("recompute", "#56B4E9", "activations computed a second time"),
    "compute": WallWords("compute", "#0072B2", "tensor kernels slower than the peak"),
    "memory": WallWords("memory wall", "#D55E00", "kernels bound by memory"),
    "communication": WallWords("communication wall", "#CC79A7", "communication that no compute covered"),
    "small_kernels": WallWords("small kernels", "#E69F00", "kernels too small to keep the GPU full"),
    "host": WallWords("host wall", "#F0E442", "waiting for the host"),
    "unattributed": WallWords("unattributed", "#999999", "time that the trace does not explain"),
}

WITHOUT_FLOPS = "tensor work without FLOPs"
"""The cause that may hold MFU; shown apart where MFU is unknown."""

SENTENCES: dict[tuple[str, str], str] = {
    ("compute", "precision"): "matmuls in a slower dtype than the GPU has",
    ("compute", "below the roofline"): "tensor kernels slower than the peak",
    ("memory", "low arithmetic intensity"): "matmuls too skinny for the memory bandwidth",
    ("memory", "allocator"): "the memory allocator",
    ("small_kernels", "launch-bound"): "waiting for the host to launch the next kernel",
    ("small_kernels", "too short to fill the GPU"): "kernels too short to fill the GPU",
    ("small_kernels", "device-side gap"): "the gaps between kernels",
    ("host", "input pipeline"): "waiting for input data",
    ("host", "input transfer"): "copying input to the GPU",
    ("host", "synchronisation"): "the host waiting for the GPU and launching late",
    ("host", "initialisation"): "start-up",
    ("unattributed", WITHOUT_FLOPS): "tensor kernels whose efficiency is unknown",
    ("unattributed", "no host events"): "gaps in which the host's work was not recorded",
    ("unattributed", "profiler overhead"): "the profiler itself",
    ("unattributed", "queued but not started"): "kernels that were queued but did not start",
}

MEANINGS: dict[str, str] = {
    "precision": "FP32 or TF32 matmuls where a 16-bit dtype would be faster",
    "below the roofline": "tile and wave quantisation, unaligned shapes, clocks, a slow kernel",
    "precision gain": "a dtype faster than the one MFU is held against: time won, not lost",
    "low arithmetic intensity": "skinny matmuls: moving the operands takes longer than multiplying them",
    "normalisation": "layer, RMS or batch norm at the speed of memory",
    "softmax": "softmax at the speed of memory",
    "elementwise": "pointwise kernels at the speed of memory: fusing saves the round trips",
    "reduction": "sums and maxima at the speed of memory",
    "optimizer": "the optimizer reads and writes every parameter and its states",
    "loss": "the loss reads and writes the logits",
    "embedding": "table look-ups and their gradients",
    "layout": "copies, dtype casts and layout changes that do no arithmetic",
    "random": "dropout masks and random numbers at the speed of memory",
    "sort": "sorting and top-k",
    "recompute": "activation checkpointing: forward work run again inside the backward pass",
    "poor access pattern": "strided, uncoalesced or atomic access: slower than the bytes explain",
    "allocator": "cudaMalloc and cudaFree during training: memory is nearly full",
    "copy": "copies inside the GPU and memsets",
    "offload": "tensors moved to the host and back",
    "waiting for a straggler": "this GPU was ready, another was not",
    "wire time": "what the bytes need at the bandwidth of the link",
    "slow collective": "slower than the link allows: small messages, topology, contention",
    "peer-to-peer copy": "copies between GPUs that nothing covered",
    "waiting or slow": "a late peer or a slow network; the other ranks' traces would tell",
    "pipeline bubble": "waiting for the neighbouring pipeline stage",
    "too short to fill the GPU": "kernels near the shortest time a kernel can take: fuse them",
    "launch-bound": "the GPU ran dry because the host launches too slowly: fuse, compile, or use CUDA graphs",
    "device-side gap": "the pause between two kernels that were both queued",
    "input pipeline": "the training loop waited for the DataLoader",
    "input transfer": "input batches copied to the GPU while nothing else ran",
    "synchronisation": "the host waited for the GPU (.item(), .cpu(), synchronize) and lost its lead",
    "launch call blocked": "a launch call that took far longer than launches do",
    "initialisation": "one-off start-up work inside the window",
    "compilation": "Dynamo, Inductor or Triton compiled during the window",
    "checkpoint saving": "writing a checkpoint while the GPU waits",
    "garbage collection": "Python's garbage collector",
    "evaluation": "evaluation inside the window",
    "logging": "logging inside the window",
    "host code": "Python or C++ between the launches",
    WITHOUT_FLOPS: "may hold MFU: their FLOPs or the peak of the GPU are not known",
    "unknown kernel": "long kernels of a kind that trace-doctor does not know",
    "graph contents": "a CUDA graph that was recorded as a whole: what ran in it is unknown",
    "no host events": "idle, and the trace does not record what the host did",
    "queued but not started": "launched, GPU free, yet not started: the trace does not show why",
    "profiler overhead": "the profiler's own work; a run without it is faster",
    "model error": "FLOPs or peak don't fit these kernels: a negative rest that keeps the sum exact",
}

BASES = {
    "model": "from the model's FLOPs per step",
    "metadata": "from the FLOPs recorded in the trace",
    "shapes": "measured from op shapes",
    "gpu_metrics": "from tensor-pipe activity, an upper bound",
}

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_WRAPPER = re.compile(r"[AB]?(?:Bin|Un)aryFunctor|TensorListMetadata|\w*OpMathFunctor")
_HOST_RANGE = re.compile(r"\.py\(\d*\)|^enumerate\(")
"""A Python frame or a range of the data loader: its brackets hold no parameters."""
_NAMELESS = {"kernel", "kernel2", "device_kernel"}
"""CUTLASS and its users: the name is the first template argument."""
_IDENTIFIER = re.compile(r"\b[A-Za-z]\w*\b(?!::)")
_FUNCTOR = re.compile(r"\b(\w*Functor\w*|\w+_kernel_cuda|\w+Ops?)\b")


def clean(text: str, *, keep_lines: bool = False) -> str:
    """Text without anything that could steer a terminal: line breaks become blanks, invisible characters escapes."""
    if text.isprintable():
        return text

    def visible(char: str) -> str:
        if char == "\n" and keep_lines:
            return char
        if char in "\r\n\t\v\f":
            return " "
        return ascii(char)[1:-1] if unicodedata.category(char) in _INVISIBLE else char

    return "".join(map(visible, text))


def cleaned(said: Said) -> Said:
    """A report or comparison with every string cleaned and at most 2,000 characters long: names in a trace are other people's text."""

    @cache
    def harmless(words: str, key: str = "") -> str:
        return clean(clip(words, LONGEST), keep_lines=key == "fix.code")

    def walk(value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return harmless(value, key)
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, dict):
            return {harmless(str(k)): walk(v, f"fix.{k}" if key.endswith("fix") else str(k)) for k, v in value.items()}
        return value

    return msgspec.convert(walk(msgspec.to_builtins(said)), type(said))


def plain(text: str) -> str:
    """Text as it is printed: no-break blanks have done their work."""
    return text.replace(SPACE, " ")


def clip(text: str, limit: int) -> str:
    """At most `limit` characters, shortened in the middle: names differ at their ends."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    tail = limit - 1 - head
    return f"{text[:head]}…{text[-tail:]}" if tail > 0 else text[:limit]


def kernel(name: str) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters, but with its functor.

    >>> kernel("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int, float)")
    'vectorized_elementwise_kernel<CUDAFunctor_add>'
    """
    if _HOST_RANGE.search(name):
        return name
    if name.startswith("_Z"):
        return _demangled(name)
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    opening = re.search(r"[<(]", text)
    if not opening or opening.start() == 0 or " -> " in text or text.startswith("Mem"):
        return text
    base = text[: opening.start()].strip().rsplit("::", 1)[-1]
    if base.lower() in _NAMELESS:
        return f"{base}<{max(_IDENTIFIER.findall(text, opening.start())[:3], key=len, default='')}>"
    functors = [found[1] for found in _FUNCTOR.finditer(text, opening.start()) if found[1] != base]
    telling = next((functor for functor in functors if not _WRAPPER.match(functor)), functors[0] if functors else None)
    return f"{base}<{telling}>" if telling else base


def _demangled(name: str) -> str:
    """The innermost identifier of an Itanium-mangled name: _ZN2ck6device10fused_gemmILi1EEEv is fused_gemm."""
    rest, found = re.sub(r"^_Z(?:N[KVr]*)?", "", name), ""
    while (length := re.match(r"\d+", rest)) and length.end() + int(length[0][:4]) <= len(rest):
        end = length.end() + int(length[0][:4])
        found, rest = rest[length.end() : end], rest[end:]
    return found or name


def cause(wall: Wall, name: str) -> str:
    """A cause with its wall before it: "memory wall: softmax"."""
    label = WALLS[wall].label
    return label if name == label else f"{label}: {name}"


def number(value: float, significant: int = 3) -> str:
    """Three significant digits, never an exponent below a million: 0.52, 35.2, 989, 12,900."""
    if value == 0:
        return "0"
    decimals = significant - len(str(int(abs(value)))) if abs(value) >= 1 else significant - 1
    return f"{value:,.{max(decimals, 0)}f}"


def scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """The value in the largest unit that it fills after rounding."""
    size, unit = next(((s, u) for s, u in units if abs(value) >= s * 0.9995), units[-1])
    return f"{number(value / size)}{SPACE}{unit}"


def duration(ns: float | None) -> str:
    """Nanoseconds in the unit that reads best: 850 ns, 12.3 µs, 35.2 ms, 12.9 s."""
    if ns is None:
        return "unknown"
    return scaled(ns, ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")))


def rate(value: float | None, unit: str) -> str:
    """A rate in base units per second: 989 TFLOP/s, 3.35 TB/s."""
    if value is None:
        return "unknown"
    prefixes = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    # 1,979 TFLOP/s and 3,350 GB/s are how data sheets write them
    usable = tuple((size, prefix + unit) for size, prefix in prefixes if size <= 1e12)
    return scaled(value, usable)


def size(value: float | None) -> str:
    """Bytes of memory as PyTorch prints them: 512 MiB, 71.2 GiB."""
    if value is None:
        return "unknown"
    return scaled(value, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))


def percent(share: float | None, digits: int = 1) -> str:
    """A share of 1 as per cent."""
    return "unknown" if share is None else f"{100 * share:.{digits}f}{SPACE}%"


def points(value: float) -> str:
    """Points of MFU, with one decimal and no negative zero."""
    return f"{round(value, 1) + 0.0:.1f}"


class Column(NamedTuple):
    """A time column: one unit and number of decimals for all of its rows."""

    unit: str
    size_ns: float
    decimals: int

    def show(self, ns: float) -> str:
        """The time in this column's unit."""
        return f"{round(ns / self.size_ns, self.decimals) + 0.0:,.{self.decimals}f}"


def column(longest_ns: float) -> Column:
    """The unit in which the longest time of a column has three or four digits before or after the point."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if longest_ns >= 2 * size or unit == "µs":
            whole = len(str(int(longest_ns / size)))
            return Column(unit, size, max(4 - whole, 1) if whole < 4 else 1)
    raise AssertionError


def plural(count: int, noun: str) -> str:
    """1 step, 2 steps, 1,000 steps."""
    return f"{count:,}{SPACE}{noun}{'' if count == 1 else 's'}"


def listing(items: list[str]) -> str:
    """a; a and b; a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def ranges(numbers: Iterable[int], most: int = 8) -> str:
    """Numbers in ascending order, neighbours joined, at most `most` groups: 0-3, 5."""
    groups: list[list[int]] = []
    for number in sorted(set(numbers)):
        if groups and number == groups[-1][1] + 1:
            groups[-1][1] = number
        else:
            groups.append([number, number])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in groups[:most]]
    return ", ".join([*shown, "…"] if len(groups) > most else shown)


def sentence(text: str) -> str:
    """First letter large, a full stop at the end."""
    text = text.strip()
    return text if not text else text[0].upper() + text[1:] + ("" if text[-1] in ".!?:" else ".")


def count(value: float) -> str:
    """How often something happened a step, as a mean: 144, 1.5, 0.33."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"


EMPTY = "·"


def bar(low: float, high: float, cells: int) -> str:
    """A bar from `low` to `high` per cent of `cells` characters, to half a character; what is there is never invisible.

    >>> bar(25, 50, 8)
    '··██····'
    """
    low, high = min(max(low, 0.0), 100.0), min(max(high, 0.0), 100.0)
    start, end = (round(edge / 100 * 2 * cells) for edge in (low, high))
    if start >= end:
        place = min(start // 2, cells - 1)
        return EMPTY * place + ("▏" if high > low else EMPTY) + EMPTY * (cells - place - 1)
    drawn = "▐" if start % 2 else ""
    full = end // 2 - (start + 1) // 2
    drawn = drawn + "█" * full + ("▌" if end % 2 else "") if full >= 0 else "▐"
    return (EMPTY * (start // 2) + drawn).ljust(cells, EMPTY)[:cells]
