"""Rules for compute inefficiency: the wrong dtype, the wrong shape, the wrong kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import polars as pl

from trace_doctor.classifiers.intervals import cut, union
from trace_doctor.fixes import matmul_shape
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
BADLY = 0.5
"""A matmul below half of its roofline is slow for a reason."""
GEMM_BOUND = 0.6
MOSTLY_BESIDE = 0.5
"""Share of a kernel's time that runs beside communication, from which on it counts as slowed by it."""
ENOUGH_ALONE = 2
CLEARLY = 1.1
"""Kernels of the same shape spread by a few percent anyway."""
ENOUGH_LAUNCHES = 8
BEST = 0.05
"""Share of a kernel's launches that are its best."""
UNEVEN = 1.15
MOST_SHAPES = 3
MATMULS = ("gemm", "grouped_gemm")
"""Families of tensor kernels that advice on the shape of matrices is for."""


def wrong_precision(case: Case) -> Iterable[Draft]:
    """Tensor work in FP32 or TF32 where a 16-bit dtype has a higher peak."""
    claims = pl.concat([case.with_kernels(case.caused("precision"), "ran_in"), _slow_without_flops(case)])
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
    claims = case.with_kernels(case.caused("tensor work without FLOPs"), "ran_in")
    claims = claims.filter(pl.col("ran_in").is_in(pl.Series(list(parts), dtype=pl.Categorical).implode()))
    part = pl.col("ran_in").cast(pl.String).replace_strict(parts, default=0.0, return_dtype=pl.Float64)
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
    losses = case.lost(pl.col("wall") == "compute", ~pl.col("is_idle"))
    claims = losses.filter(matches(losses["name"], "|".join(patterns)))
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
    claims = _of_matmuls(case, "low arithmetic intensity")
    if case.is_worth_saying(claims):
        yield Draft(claims, "medium: bytes modelled from shapes", words=largest(claims))


def _of_matmuls(case: Case, cause: str) -> pl.DataFrame:
    """The losses of this cause that matrix products hold."""
    losses = case.with_kernels(case.caused(cause), "family")
    return losses.filter(pl.col("family").is_in(MATMULS))


def slowed_by_communication(case: Case) -> Iterable[Draft]:
    """Tensor kernels that take longer beside a collective than the same kernel on the same shapes does alone."""
    losses = case.caused("below the roofline")
    if not case.is_worth_saying(losses):
        return
    slowed = _slowed(case)
    claims = (
        losses.join(slowed.select("activity", "alone_ns", "duration_ns"), on="activity", maintain_order="left")
        .with_columns(time_ns=pl.min_horizontal("time_ns", pl.col("duration_ns") - pl.col("alone_ns")))
        .drop("alone_ns", "duration_ns")
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
    columns = ["activity", "name", "grid", "op_row", "start_ns", "end_ns", "duration_ns"]
    runs = kernels.lazy().filter(pl.col("tensor") & (pl.col("duration_ns") > 0)).select(columns).collect()
    runs = runs.with_columns(shape=case.analysis.trace.ops["shapes"].gather(runs["op_row"]))
    beside = cut(runs, union(kernels.lazy().filter(is_communication).select("start_ns", "end_ns").collect()))
    beside = beside.group_by("activity").agg(beside_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    runs = runs.join(beside, on="activity", how="left").with_columns(pl.col("beside_ns").fill_null(0))
    alone = runs.filter(pl.col("beside_ns") == 0).group_by(same).agg(pl.len(), alone_ns=pl.col("duration_ns").median())
    return (
        runs.filter(pl.col("beside_ns") >= MOSTLY_BESIDE * pl.col("duration_ns"))
        .join(alone.filter(pl.col("len") >= ENOUGH_ALONE), on=same, nulls_equal=True)
        .filter(pl.col("duration_ns") > CLEARLY * pl.col("alone_ns"))
    )


def slower_than_its_best(case: Case) -> Iterable[Draft]:
    """Tensor kernels whose usual launch takes clearly longer than the best launches of the same kernel on the same shapes."""
    losses = case.caused("below the roofline")
    if not case.is_worth_saying(losses):
        return
    uneven = _uneven(case)
    claims = (
        losses.join(uneven.select("activity", "best_ns", "duration_ns"), on="activity", maintain_order="left")
        .with_columns(time_ns=pl.min_horizontal("time_ns", pl.col("duration_ns") - pl.col("best_ns")))
        .filter(pl.col("time_ns") > 0)
        .drop("best_ns", "duration_ns")
    )
    if case.is_worth_saying(claims):
        took, best = float(uneven["duration_ns"].sum()), float(uneven["best_ns"].sum())
        yield Draft(
            claims,
            "low: clocks are not recorded; power, heat, or another process on the GPU look the same",
            words=largest(claims) | {"slower": f"{took / best - 1:.0%}"},
            evidence=(
                Evidence(
                    kind="kernels",
                    name="tensor kernels slower than their own best",
                    rank=case.analysis.trace.meta.rank,
                    count=len(uneven),
                    duration_ns=round(took),
                    numbers={"at_their_best_ms": round(best / 1e6, 3), "times_as_long": round(took / best, 2)},
                ),
            ),
        )


def _uneven(case: Case) -> pl.DataFrame:
    """Tensor kernels with `best_ns`, the 5th percentile of the same kernels, where their median is clearly longer."""
    same = ["name", "grid", "shape"]
    columns = ["activity", "name", "grid", "op_row", "duration_ns"]
    runs = case.kernels.lazy().filter(pl.col("tensor") & (pl.col("duration_ns") > 0)).select(columns).collect()
    runs = runs.with_columns(shape=case.analysis.trace.ops["shapes"].gather(runs["op_row"]))
    groups = (
        runs.filter(pl.col("shape").is_not_null())
        .group_by(same)
        .agg(
            pl.len(),
            best_ns=pl.col("duration_ns").quantile(BEST, "nearest"),
            median_ns=pl.col("duration_ns").median(),
        )
    )
    slow = groups.filter((pl.col("len") >= ENOUGH_LAUNCHES) & (pl.col("median_ns") > UNEVEN * pl.col("best_ns")))
    return runs.join(slow, on=same, nulls_equal=True).filter(pl.col("duration_ns") > pl.col("best_ns"))


def badly_shaped_matmul(case: Case) -> Iterable[Draft]:
    """Matmuls below the roofline with a reason that their shape or grid shows, and the shape to try."""
    losses = _of_matmuls(case, "below the roofline")
    if not case.is_worth_saying(losses):
        return
    claims = losses.join(_problems(case), on="activity")
    if not case.is_worth_saying(claims):
        return
    by_problem = claims.group_by("reason", "attempt", "shape").agg(pl.col("time_ns").sum(), pl.len())
    ranked = by_problem.sort(["time_ns", "reason", "shape"], descending=[True, False, False])
    top = ranked.row(0, named=True)
    yield Draft(
        claims.drop("reason", "attempt", "shape"),
        "medium: shape and grid are recorded; how fast a better shape runs has to be tried",
        words=largest(claims) | {"reason": top["reason"], "attempt": top["attempt"], "shape": top["shape"] or ""},
        evidence=tuple(
            Evidence(
                kind="shape",
                name=f"{row['shape'] or 'shape not recorded'}: {row['reason']}; {row['attempt']}",
                rank=case.analysis.trace.meta.rank,
                count=row["len"],
                numbers={"total_ms": round(row["time_ns"] / 1e6, 3)},
            )
            for row in ranked.head(MOST_SHAPES).iter_rows(named=True)
        ),
    )


def _problems(case: Case) -> pl.DataFrame:
    """Slow matmuls with a named reason: activity, reason, attempt (what to try), shape."""
    tensor = case.analysis.account.tensor
    slow = tensor.filter(pl.col("family").is_in(MATMULS) & (pl.col("ideal_ns") < BADLY * pl.col("duration_ns")))
    slow = slow.with_columns(shape=case.analysis.trace.ops["shapes"].gather(slow["op_row"]))
    kinds = ["name", "ran_in", "shape", "grid"]
    distinct = slow.select(kinds).unique()
    processors = case.analysis.trace.meta.devices[case.analysis.number].multiprocessors
    rows = [
        matmul_shape.problem_of(
            name, matmul_shape.matmul_of(shape), dtype=dtype, blocks=_blocks(grid), processors=processors
        )
        for name, dtype, shape, grid in distinct.select(pl.col(kinds).cast(pl.String)).iter_rows()
    ]
    found = distinct.with_columns(
        pl.Series("reason", [row.reason if row else None for row in rows], dtype=pl.String),
        pl.Series("attempt", [row.attempt if row else None for row in rows], dtype=pl.String),
    ).filter(pl.col("reason").is_not_null())
    joined = slow.select("activity", *kinds).unique("activity").join(found, on=kinds, nulls_equal=True)
    return joined.select("activity", "reason", "attempt", pl.col("shape").cast(pl.String))


def _blocks(text: str | None) -> int | None:
    try:
        x, y, z = json.loads(text or "")
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
    gemm = tensor.filter(pl.col("family").is_in(MATMULS) & pl.col("ran_in").cast(pl.String).is_in(["bf16", "fp16"]))
    share = float(gemm["exclusive_ns"].sum()) / case.window_ns
    if share >= GEMM_BOUND:
        yield Draft(
            case.charges.clear(),
            f"medium: 16-bit matmuls take {share:.0%} of the window",
            words={"share": f"{share:.0%}"},
            is_remark=True,
        )
