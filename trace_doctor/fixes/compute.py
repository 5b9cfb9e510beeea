"""Rules for compute inefficiency: the wrong dtype, the wrong shape, the wrong kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from trace_doctor.classifiers.intervals import cut, union
from trace_doctor.fixes.case import Case
from trace_doctor.fixes.finding import Draft, largest
from trace_doctor.hardware import devices
from trace_doctor.report import Evidence
from trace_doctor.trace import matches

FLASH_2 = r"(^|[ :])(pytorch_)?flash::flash_(fwd|bwd)\w*_kernel"
MEMORY_EFFICIENT = r"fmha_cutlass[FB]"
NEWER_THAN_FLASH_2 = {9: "hopper", 10: "blackwell"}
"""Major compute capabilities whose tensor cores FlashAttention 2 was not made for, and what their newer kernels are made for."""
SINCE_FLASH_2 = 8
"""Major compute capability that FlashAttention 2 needs."""
PERSISTENT = r"(?i)nvjet|sm(90|100)_|persistent|stream_?k"
"""Kernels whose grid is the number of SMs whatever the shape."""
ALIGNMENT = {"bf16": 8, "fp16": 8, "fp8": 16, "tf32": 4}
"""Elements that a tensor core's operand rows should be a multiple of: 16 bytes."""
UNALIGNED = r"align([124])(?!\d)"
"""CUTLASS and cuBLAS name the alignment that the operands allowed, in elements."""
FEW_TILES = 0.6
BADLY = 0.5
"""A matmul below half of its roofline is slow for a reason."""
GEMM_BOUND = 0.6
MOSTLY_BESIDE = 0.5
"""Share of a kernel's time that runs beside communication, from which on it counts as slowed by it."""
ENOUGH_ALONE = 2
CLEARLY = 1.1
"""Kernels of the same shape spread by a few percent anyway."""
MATMULS = ("gemm", "grouped_gemm")
"""Families of tensor kernels that advice on the shape of matrices is for."""


def wrong_precision(case: Case) -> Iterable[Draft]:
    """Tensor work in FP32 or TF32 where a 16-bit dtype has a higher peak."""
    claims = pl.concat([case.caused("precision"), _slow_without_flops(case)])
    if case.is_worth_saying(claims):
        dtype = str(_most(claims, "ran_in") or "fp32")
        estimated = float(claims.filter(pl.col("cause") != "precision")["time_ns"].sum())
        yield Draft(
            claims,
            "high: the dtype stands in the kernels' names or their ops, the peaks are the device's"
            if estimated < 0.5 * float(claims["time_ns"].sum())
            else "medium: the dtype stands in the kernels' names; FLOPs are not known, so this is what the peaks allow at most",
            words=largest(claims)
            | {"dtype": dtype.upper(), "peak_dtype": (case.analysis.peak_dtype or "bf16").upper()},
            variant="fp16" if case.analysis.peak_dtype == "fp16" else "tf32" if dtype == "tf32" else "",
        )


def _slow_without_flops(case: Case) -> pl.DataFrame:
    """Tensor kernels without FLOPs that ran in a slow dtype: a kernel at its own peak P_k would save at most 1 - P_k / P."""
    analysis = case.analysis
    slow = {dtype: devices.peak(analysis.device, dtype) for dtype in ("fp32", "tf32")}
    peak = analysis.peak_flops
    parts = {dtype: 1 - value / peak for dtype, value in slow.items() if value and peak and value < peak}
    claims = case.caused("tensor work without FLOPs").filter(pl.col("ran_in").is_in(list(parts)))
    part = pl.col("ran_in").replace_strict(parts, default=0.0, return_dtype=pl.Float64)
    return claims.with_columns(time_ns=pl.col("time_ns") * part)


def _most(claims: pl.DataFrame, column: str) -> Any:
    sums = (
        claims.group_by(column)
        .agg(pl.col("time_ns").sum())
        .filter(pl.col(column).is_not_null())
        .sort("time_ns", column)
    )
    return sums[column][-1] if len(sums) else None


def old_attention(case: Case) -> Iterable[Draft]:
    """An attention kernel made for an older GPU: FlashAttention 2 on Hopper, memory-efficient attention since Ampere."""
    info = case.analysis.trace.meta.devices[case.analysis.number]
    major = int((info.compute_capability or "0").split(".")[0] or 0)
    variant = NEWER_THAN_FLASH_2.get(major)
    patterns = [MEMORY_EFFICIENT] * (major >= SINCE_FLASH_2) + [FLASH_2] * (variant is not None)
    if info.vendor == "amd" or not patterns:
        return
    is_old = matches(case.losses["name"], "|".join(patterns))
    claims = case.losses.filter(is_old, pl.col("wall") == "compute", ~pl.col("is_idle"))
    if case.is_worth_saying(claims):
        words = largest(claims)
        is_efficient = re.search(MEMORY_EFFICIENT, words["name"]) is not None
        yield Draft(
            claims,
            "medium: the kernel is known by its name; how much a newer one gains depends on the shapes",
            words=words | {"kernel": "Memory-efficient attention" if is_efficient else "FlashAttention 2"},
            variant=variant or "",
        )


def low_intensity_matmul(case: Case) -> Iterable[Draft]:
    """Matmuls whose operands take longer to move than to multiply."""
    claims = case.caused("low arithmetic intensity").filter(pl.col("family").cast(pl.String).is_in(MATMULS))
    if case.is_worth_saying(claims):
        yield Draft(claims, "medium: bytes modelled from shapes", words=largest(claims))


def slowed_by_communication(case: Case) -> Iterable[Draft]:
    """Tensor kernels that take longer beside a collective than the same kernel on the same shapes does alone."""
    slowed = _slowed(case)
    claims = (
        case.caused("below the roofline")
        .join(slowed.select("activity", "alone_ns"), on="activity", maintain_order="left")
        .with_columns(time_ns=pl.min_horizontal("time_ns", pl.col("duration_ns") - pl.col("alone_ns")))
        .drop("alone_ns")
    )
    if case.is_worth_saying(claims):
        took, alone = float(slowed["duration_ns"].sum()), float(slowed["alone_ns"].sum())
        yield Draft(
            claims,
            "high: the same kernels on the same shapes are timed with and without a collective beside them",
            words=largest(claims) | {"slower": f"{took / alone - 1:.0%}"},
            evidence=(
                Evidence(
                    kind="kernels",
                    name="tensor kernels beside communication",
                    rank=case.analysis.trace.meta.rank,
                    count=len(slowed),
                    duration_ns=round(took),
                    numbers={"alone_ms": round(alone / 1e6, 3), "times_as_long": round(took / alone, 2)},
                ),
            ),
        )


def _slowed(case: Case) -> pl.DataFrame:
    """Tensor kernels beside communication, with `alone_ns`: the median of the same ones without it, which is clearly shorter."""
    same = ["name", "grid", "shape"]
    kernels, is_communication = case.kernels, pl.col("kind") == "communication"
    runs = kernels.filter("tensor").select("activity", "name", "grid", "op_row", "start_ns", "end_ns", "duration_ns")
    runs = runs.with_columns(shape=case.analysis.trace.ops["shapes"].gather(runs["op_row"]))
    beside = cut(runs, union(kernels.filter(is_communication)))
    beside = beside.group_by("activity").agg(beside_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    runs = runs.join(beside, on="activity", how="left").with_columns(pl.col("beside_ns").fill_null(0))
    alone = runs.filter(pl.col("beside_ns") == 0).group_by(same).agg(pl.len(), alone_ns=pl.col("duration_ns").median())
    return (
        runs.filter(pl.col("beside_ns") >= MOSTLY_BESIDE * pl.col("duration_ns"))
        .join(alone.filter(pl.col("len") >= ENOUGH_ALONE), on=same, nulls_equal=True)
        .filter(pl.col("duration_ns") > CLEARLY * pl.col("alone_ns"))
    )


def badly_shaped_matmul(case: Case) -> Iterable[Draft]:
    """Matmuls below the roofline with a reason that their shape or grid shows."""
    losses = case.caused("below the roofline").filter(pl.col("family").cast(pl.String).is_in(MATMULS))
    if not case.is_worth_saying(losses):
        return
    reasons = _reasons(case)
    claims = losses.join(reasons, on="activity")
    if case.is_worth_saying(claims):
        top = claims.group_by("reason").agg(pl.col("time_ns").sum()).sort("time_ns", "reason")["reason"][-1]
        yield Draft(
            claims.drop("reason", "shape"),
            "medium: shape and grid are recorded; how fast a better shape runs has to be tried",
            words=largest(claims)
            | {"reason": top, "shape": str(_most(claims.filter(pl.col("reason") == top), "shape") or "")},
        )


def _reasons(case: Case) -> pl.DataFrame:
    """Slow matmuls with a named reason: activity, reason, shape."""
    tensor = case.analysis.account.tensor
    slow = tensor.filter(
        pl.col("family").cast(pl.String).is_in(MATMULS) & (pl.col("ideal_ns") < BADLY * pl.col("duration_ns"))
    )
    shapes = case.analysis.trace.ops["shapes"]
    slow = slow.with_columns(shape=shapes.gather(slow["op_row"]).cast(pl.String))
    processors = case.analysis.trace.meta.devices[case.analysis.number].multiprocessors
    known = {text: _row_lengths(text) for text in slow["shape"].unique().drop_nulls()}
    blocks = {text: _blocks(text) for text in slow["grid"].cast(pl.String).unique().drop_nulls()}
    rows = [
        (activity, reason, shape)
        for activity, name, dtype, shape, grid in slow.select(
            "activity", pl.col("name").cast(pl.String), "ran_in", "shape", pl.col("grid").cast(pl.String)
        )
        .unique("activity")
        .iter_rows()
        if (reason := _reason(name, known.get(shape, ()), dtype, blocks.get(grid), processors))
    ]
    return pl.DataFrame(rows, schema={"activity": pl.UInt32, "reason": pl.String, "shape": pl.String}, orient="row")


def _reason(
    name: str, rows: Sequence[int], dtype: str | None, blocks: int | None, processors: int | None
) -> str | None:
    """Unaligned rows, as their length or the kernel's name shows, then a grid that leaves SMs empty."""
    step = ALIGNMENT.get(dtype or "")
    if step and (odd := next((length for length in rows if length % step), None)):
        return f"a dimension of {odd} is no multiple of {step}"
    if step and (aligned := re.search(UNALIGNED, name)) and int(aligned[1]) < step:
        return f"rows aligned to {aligned[1]} of {step} elements"
    if blocks and processors and blocks < FEW_TILES * processors and not re.search(PERSISTENT, name):
        return f"{blocks} tiles for {processors} SMs"
    return None


def _row_lengths(text: str) -> tuple[int, ...]:
    """Columns of the two matrices in `Input Dims`, the last arguments with two dimensions or more; vectors have none."""
    try:
        shapes = json.loads(text)
    except ValueError:
        return ()
    matrices = [shape for shape in shapes if isinstance(shape, list) and len(shape) >= 2]
    lengths = [shape[-1] for shape in reversed(matrices[-2:])] if len(matrices) >= 2 else []
    return tuple(length for length in lengths if isinstance(length, int) and length > 1)


def _blocks(text: str) -> int | None:
    try:
        x, y, z = json.loads(text)
        return int(x) * int(y) * int(z)
    except (ValueError, TypeError):
        return None


def fp8_opportunity(case: Case) -> Iterable[Draft]:
    """A run bound by 16-bit matmuls on a GPU with a faster FP8: nothing is lost, but there is a next step."""
    analysis = case.analysis
    fp8, peak = devices.peak(analysis.device, "fp8"), analysis.peak_flops
    if not fp8 or not peak or fp8 <= peak or analysis.peak_dtype not in ("bf16", "fp16"):
        return
    tensor = analysis.account.tensor
    gemm = tensor.filter(pl.col("family").cast(pl.String).is_in(MATMULS) & pl.col("ran_in").is_in(["bf16", "fp16"]))
    share = float(gemm["exclusive_ns"].sum()) / case.window_ns
    if share >= GEMM_BOUND:
        yield Draft(
            case.losses.clear(),
            f"medium: 16-bit matmuls take {share:.0%} of the window",
            words={"share": f"{share:.0%}"},
            is_remark=True,
        )
