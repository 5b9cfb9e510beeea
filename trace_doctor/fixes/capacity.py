"""Rules on the capacity of the memory: what is done for want of it, and what there is room for."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from trace_doctor.classifiers.capacity import USABLE_SHARE, Recomputed, memory_of, recomputed
from trace_doctor.classifiers.memory_wall import direction
from trace_doctor.fixes.case import Case
from trace_doctor.fixes.finding import Draft, largest
from trace_doctor.report import Evidence, Memory

FULL_SHARE = USABLE_SHARE
SHORTAGE = ("allocator", "offload")
"""Causes that show that memory is short."""
GROWS_WITH_BATCH = ("low arithmetic intensity",)
"""Causes beside the small-kernel wall that a larger batch shrinks."""
LEAST_TIMES, MOST_TIMES = 2, 16


def allocator(case: Case) -> Iterable[Draft]:
    """The allocator asks the driver inside the steps."""
    claims = case.caused("allocator")
    if case.is_worth_saying(claims):
        memory = memory_of(case.analysis)
        known = memory or Memory()
        calls = known.mallocs + known.frees
        yield Draft(
            claims,
            "high: the calls are recorded inside the steps",
            words=largest(claims) | _words(memory) | {"where": case.where, "state": _state(memory)},
            variant="roomy" if _is_roomy(memory) else _more_memory(case),
            evidence=_evidence(
                case, memory, reserved_gib=known.peak_reserved_bytes, calls=calls, retries=known.retries
            ),
        )


def offload(case: Case) -> Iterable[Draft]:
    """The GPU waits for tensors that are moved to the host and back."""
    claims = case.caused("offload")
    if case.is_worth_saying(claims):
        memory = memory_of(case.analysis)
        out = case.kernels.filter((pl.col("kind") == "copy") & (direction() == "d2h"))
        moved_bytes = float(out["bytes"].sum()) / case.steps
        fits = memory is not None and memory.room_bytes is not None and moved_bytes <= memory.room_bytes
        yield Draft(
            claims,
            "high: measured, nothing else ran",
            words=largest(claims) | _words(memory) | {"where": case.where, "moved": named(moved_bytes)},
            variant="roomy" if fits else _more_memory(case),
            evidence=_evidence(case, memory, allocated_gib=_allocated(memory), moved_gib=moved_bytes),
        )


def recomputation(case: Case) -> Iterable[Draft]:
    """Forward work that runs again inside the backward pass: activation checkpointing."""
    claims = case.lost_by(pl.col("recompute"), pl.col("kind") != "communication").filter(~pl.col("is_idle"))
    if not case.is_worth_saying(claims):
        return
    memory, saved = memory_of(case.analysis), recomputed(case.analysis, case.kernels, steps=case.steps)
    kept = _kept(memory, saved)
    words = {} if saved is None else {"saved": named(saved.saved_bytes), "regions": f"{saved.regions:,.0f}"}
    yield Draft(
        claims,
        "medium: the ops run again under backward nodes with the shapes of the forward pass",
        words=largest(claims) | _words(memory) | words | {"kept": f"{kept or 0:,.0f}"},
        variant=_recomputation_variant(case, saved, kept),
        evidence=_evidence(case, memory, allocated_gib=_allocated(memory), saved_gib=saved and saved.saved_bytes),
    )


def _kept(memory: Memory | None, saved: Recomputed | None) -> float | None:
    """How many of the regions could keep their activations; None where the trace doesn't tell."""
    if memory is None or memory.room_bytes is None or saved is None or not saved.saved_bytes:
        return None
    return min(saved.regions, memory.room_bytes * saved.regions // saved.saved_bytes)


def _recomputation_variant(case: Case, saved: Recomputed | None, kept: float | None) -> str:
    if saved is None or kept is None:
        return "tight" if _is_memory_short(case) else ""
    return "roomy" if kept == saved.regions else "partly" if kept >= 1 else "full"


def spare_memory(case: Case) -> Iterable[Draft]:
    """Much of the time goes to kernels too small for the GPU while its memory would hold a batch several times as large."""
    grows = pl.col("cause").is_in(pl.Series(GROWS_WITH_BATCH, dtype=pl.Categorical).implode())
    charges = case.analysis.account.charges.select("wall", "cause", "time_ns")
    share = case.share(charges.filter((pl.col("wall") == "small_kernels") | grows))
    if share < case.limits.weighty_gaps_share:
        return
    memory = memory_of(case.analysis)
    times = _larger_batch(memory)
    if memory is not None and times >= LEAST_TIMES:
        yield Draft(
            case.charges.clear(),
            "medium: what comes and goes within a step is taken to grow with the batch",
            words=_words(memory)
            | {"times": f"{times}" if times <= MOST_TIMES else f"more than {MOST_TIMES}", "share": f"{share:.0%}"},
            evidence=_evidence(case, memory, allocated_gib=_allocated(memory)),
            is_remark=True,
        )


def _larger_batch(memory: Memory | None) -> int:
    """How many times the batch would fit, if what comes and goes grows with it and the rest stays; 0 where unknown."""
    if memory is None or memory.room_bytes is None or memory.peak_allocated_bytes is None:
        return 0
    moving_bytes = memory.peak_allocated_bytes - (memory.resident_bytes or 0)
    return 1 + memory.room_bytes // moving_bytes if moving_bytes > 0 else 0


def _is_roomy(memory: Memory | None) -> bool:
    return memory is not None and memory.share is not None and memory.share < FULL_SHARE and not memory.retries


def _is_memory_short(case: Case) -> bool:
    """Whether allocator calls or offloading cost time, claimed by now or not."""
    is_shortage = pl.col("cause").is_in(pl.Series(SHORTAGE, dtype=pl.Categorical).implode())
    return case.is_worth_saying(case.analysis.account.charges.filter(is_shortage))


def _more_memory(case: Case) -> str:
    """Where more memory can come from: "parallel", from other ranks, where there are some."""
    return "parallel" if (case.analysis.trace.meta.world_size or 1) > 1 else ""


def _state(memory: Memory | None) -> str:
    """What is known of why the allocator asks the driver."""
    if memory is None or (memory.share is None and not memory.retries):
        return "Memory is fragmented or nearly full"
    held = "{reserved} of {capacity} reserved, {fragmented} of it in no tensor".format_map(_words(memory))
    if not memory.retries:
        return f"Memory is nearly full ({held})"
    times = "once" if memory.retries == 1 else f"{memory.retries:,} times"
    return f"The allocator found the device full {times}" + (f" ({held})" if memory.share is not None else "")


def _words(memory: Memory | None) -> dict[str, str]:
    """The sizes that advice may name; "unknown" where they are."""
    known = memory or Memory()
    moving = (
        known.peak_allocated_bytes - known.resident_bytes
        if known.peak_allocated_bytes and known.resident_bytes
        else None
    )
    return {
        "capacity": named(known.capacity_bytes),
        "allocated": named(known.peak_allocated_bytes),
        "reserved": named(known.peak_reserved_bytes),
        "fragmented": named(known.fragmented_bytes),
        "moving": named(moving),
    }


def _allocated(memory: Memory | None) -> int | None:
    return None if memory is None else memory.peak_allocated_bytes


def _evidence(case: Case, memory: Memory | None, **more: float | None) -> tuple[Evidence, ...]:
    """The memory of the device beside what a rule holds against it; sizes in bytes by names that end in `_gib`, and counts."""
    if memory is None:
        return ()
    known = {"capacity_gib": memory.capacity_bytes, **more}
    return (
        Evidence(
            kind="memory",
            name="memory of the GPU in the window",
            rank=case.analysis.trace.meta.rank,
            numbers={
                name: round(value / 2**30, 2) if name.endswith("_gib") else float(value)
                for name, value in known.items()
                if value is not None
            },
        ),
    )


def named(size: float | None) -> str:
    """A size as PyTorch prints it."""
    if size is None:
        return "an unknown amount"
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
