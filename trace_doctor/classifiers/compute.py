"""Tensor kernels: what the model needed, and why the rest took longer (ATTRIBUTION section 4, first table)."""

from __future__ import annotations

import polars as pl

from trace_doctor.classifiers import charges
from trace_doctor.classifiers.charges import charge


def roofline_times(tensor: pl.DataFrame, *, peak_flops: float | None, memory_bandwidth: float | None) -> pl.DataFrame:
    """Adds what each tensor piece must take: `ideal_ns` = F/P, `dtype_ns` = F/P_k, `memory_ns` = B/W; null is unknown.

    `tensor`: pieces of tensor kernels with `flops`, `bytes_moved`, `kernel_peak_flops` (P_k) and `part`.
    """
    flops = pl.col("flops") * pl.col("part")
    return tensor.with_columns(
        ideal_ns=1e9 * flops / peak_flops if peak_flops else pl.lit(None, pl.Float64),
        dtype_ns=1e9 * flops / pl.col("kernel_peak_flops"),
        memory_ns=(1e9 * pl.col("bytes_moved") * pl.col("part") / memory_bandwidth).fill_null(0.0)
        if memory_bandwidth
        else pl.lit(0.0),
    )


def charge_tensor(tensor: pl.DataFrame) -> pl.DataFrame:
    """Charges of tensor pieces (after `roofline_times`): MFU first and never cut, then precision, bandwidth, the rest."""
    known = tensor.filter(pl.col("ideal_ns").is_not_null())
    ideal, dtype, memory = pl.col("ideal_ns"), pl.col("dtype_ns"), pl.col("memory_ns")
    left = pl.col("exclusive_ns") - ideal
    fits = left >= 0
    rows = (
        known.with_columns(
            left_ns=left.clip(lower_bound=0),
            precision_ns=pl.min_horizontal((dtype - ideal).fill_null(0).clip(lower_bound=0), left.clip(lower_bound=0)),
            excess_ns=left.clip(upper_bound=0),
        )
        .with_columns(
            low_intensity_ns=pl.when(fits)
            .then(
                pl.min_horizontal(
                    (memory - pl.max_horizontal(dtype, ideal)).clip(lower_bound=0),
                    pl.col("left_ns") - pl.col("precision_ns"),
                )
            )
            .otherwise(0.0)
        )
        .with_columns(rest_ns=pl.col("left_ns") - pl.col("precision_ns") - pl.col("low_intensity_ns"))
    )
    # work in a faster dtype than P may honestly take less than F/P
    gained = rows["dtype_ns"] < rows["ideal_ns"] * (1 - 1e-9)
    return pl.concat(
        [
            charge(rows.filter(~pl.col("recompute")), charges.MFU, "ideal_ns"),
            charge(rows.filter("recompute"), charges.RECOMPUTE, "ideal_ns"),
            charge(rows, charges.PRECISION, "precision_ns"),
            charge(rows, charges.LOW_INTENSITY, "low_intensity_ns"),
            charge(rows, charges.BELOW_ROOFLINE, "rest_ns"),
            charge(rows.filter(gained), charges.PRECISION_GAIN, "excess_ns"),
            charge(rows.filter(~gained.fill_null(value=False)), charges.MODEL_ERROR, "excess_ns"),
            charge(tensor.filter(pl.col("ideal_ns").is_null()), charges.NO_FLOPS, "exclusive_ns"),
        ]
    )


def counted_flops(tensor: pl.DataFrame) -> float:
    """Model FLOPs inside the window by the kernels' own shapes; recomputed ones don't count."""
    once = tensor.filter(~pl.col("recompute"))
    return float((once["flops"] * once["part"]).sum())


def spread_model_flops(tensor: pl.DataFrame, model_flops: float) -> tuple[pl.DataFrame, float]:
    """Binds the FLOPs of the window to the model's count (ATTRIBUTION section 4, "Which FLOPs").

    Pieces with FLOPs keep theirs; what is missing to `model_flops` is spread over tensor pieces without FLOPs by exclusive time.
    Returns the pieces and the FLOPs that no kernel can hold (negative: the shapes hold too many).
    """
    missing = model_flops - counted_flops(tensor)
    blank = pl.col("flops").is_null()
    without_ns = tensor.filter(blank)["exclusive_ns"].sum()
    if missing <= 0 or without_ns <= 0:
        return tensor, missing
    spread = missing * pl.col("exclusive_ns") / without_ns / pl.col("part")
    filled = tensor.with_columns(flops=pl.when(blank).then(spread).otherwise("flops"))
    return filled.with_columns(recompute=pl.col("recompute") & ~blank), 0.0
