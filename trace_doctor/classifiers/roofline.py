"""The roofline of every kernel: what it must take at least, what it reached, and which roof it stands under.

A kernel that does `F` FLOPs in a dtype of peak `P_k` and moves `B` bytes at bandwidth `W` takes at least `max(F / P_k, B / W)`
(Williams, Waterman, Patterson: Roofline, CACM 2009). No matmul reaches the specification: `best` holds the same against what the
best matmul was measured to reach on the device, so that what physics keeps can be told from what can be won.
"""

from __future__ import annotations

import polars as pl

HIGH_SHARE = 0.6
"""A kernel that reaches this much of a roof is bound by it."""
SHORT_FLOORS = 2.0
"""A kernel of fewer floors than this is all start-up."""


def roofs(kernels: pl.DataFrame, *, memory_bandwidth: float | None, best_share: float | None) -> pl.DataFrame:
    """Adds `compute_ns` = F/P_k, `memory_ns` = B/W, `roof_ns` = the larger, and `best_ns`, the same against the best matmul.

    `kernels`: one row each with `flops`, `bytes_moved`, `kernel_peak_flops` and `part`; `best_share`: what the best matmul
    reaches of the peak. Null is unknown.
    """
    part = pl.col("part")
    memory = 1e9 * pl.col("bytes_moved") * part / memory_bandwidth if memory_bandwidth else pl.lit(None, pl.Float64)
    return (
        kernels.with_columns(
            compute_ns=1e9 * pl.col("flops") * part / pl.col("kernel_peak_flops"), memory_ns=memory.cast(pl.Float64)
        )
        .with_columns(roof_ns=_roof(pl.col("compute_ns"), tensor=pl.col("tensor")))
        .with_columns(
            best_ns=_roof(pl.col("compute_ns") / best_share, tensor=pl.col("tensor"))
            if best_share
            else pl.lit(None, pl.Float64)
        )
    )


def _roof(compute_ns: pl.Expr, *, tensor: pl.Expr) -> pl.Expr:
    """The later of the two roofs. A tensor kernel without FLOPs has none: its bytes alone would flatter it."""
    known = pl.max_horizontal(compute_ns, "memory_ns")
    return pl.when(tensor & compute_ns.is_null()).then(None).otherwise(known)


def bound(*, floor_ns: float) -> pl.Expr:
    """Which roof holds a kernel, or a group of them by its sums: "compute", "memory", "latency", "neither"; null is unknown.

    Needs `compute_ns`, `memory_ns`, `roof_ns`, `best_ns`, `known_ns` (their time) and `median_ns`. "memory" is said only where the
    bandwidth reached is high; short kernels are bound by their start; what reaches neither roof is inefficient.
    """
    compute_roof = pl.coalesce(pl.max_horizontal("best_ns", "compute_ns"), "compute_ns")
    by_memory = pl.col("memory_ns").fill_null(0) >= pl.col("compute_ns").fill_null(0)
    reached = pl.when(by_memory).then("memory_ns").otherwise(compute_roof) / pl.col("known_ns")
    return (
        pl.when(pl.col("roof_ns").is_null() | (pl.col("known_ns") <= 0))
        .then(None)
        .when(reached >= HIGH_SHARE)
        .then(pl.when(by_memory).then(pl.lit("memory")).otherwise(pl.lit("compute")))
        .when(pl.col("median_ns") <= SHORT_FLOORS * floor_ns)
        .then(pl.lit("latency"))
        .otherwise(pl.lit("neither"))
    )


def kept_by_physics(tensor: pl.DataFrame) -> float:
    """Time of tensor kernels below the roofline that the best measured matmul would lose as well, in ns.

    `tensor`: after `roofs` and `compute.roofline_times`. The rest of what is below the roofline can be won.
    """
    allowed = pl.min_horizontal("best_ns", "exclusive_ns") - pl.max_horizontal("roof_ns", "ideal_ns")
    return float(tensor.select(allowed.clip(lower_bound=0).sum()).item() or 0.0)
