"""What is drawn as curves: a value for each step of the window of one GPU."""

from __future__ import annotations

import polars as pl

from trace_doctor.accounts.window import charges_by_step
from trace_doctor.classifiers import charges
from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.classifiers.memory_wall import direction
from trace_doctor.classifiers.timeline import COMMUNICATION, COMPUTE, COPY
from trace_doctor.report import Gpu

UNITS = {"MFU": "%", "achieved": "TFLOP/s", "memory bandwidth": "GB/s", "exposed communication": "ms"}
"""The curves, in order, with their units."""


def counters(analysis: Analysis, gpu: Gpu) -> pl.DataFrame:
    """start_ns of each step, and a column a curve of `UNITS`; a curve that the report has no number for is left out.

    `gpu`: this GPU's row of the report. Without steps the window is one.
    """
    pieces, peak_flops = analysis.account.timeline.pieces, analysis.peak_flops
    is_mfu = pl.col("cause").cast(pl.String) == charges.MFU.cause
    sums = [
        _sums(charges_by_step(analysis), pl.col("time_ns").filter(is_mfu), "mfu_ns"),
        _sums(pieces, _moved_bytes(), "moved_bytes"),
        _sums(pieces, pl.col("exclusive_ns").filter(pl.col("class") == COMMUNICATION), "exposed_ns"),
    ]
    steps = analysis.spans
    for one in sums:
        steps = steps.join(one, on="number", how="left", nulls_equal=True, maintain_order="left")
    took_ns = pl.col("end_ns") - pl.col("start_ns")
    mfu = pl.col("mfu_ns").fill_null(0) / took_ns
    rates = {one.name: one.rate for one in gpu.metrics.utilisations}
    curves: dict[str, pl.Expr] = {}
    if gpu.metrics.mfu is not None and peak_flops:
        curves["MFU"] = 100 * mfu
        curves["achieved"] = mfu * peak_flops / 1e12
    if rates.get("memory_bandwidth") is not None:
        curves["memory bandwidth"] = pl.col("moved_bytes").fill_null(0) / took_ns
    if gpu.partition.communication_ns:
        curves["exposed communication"] = pl.col("exposed_ns").fill_null(0) / 1e6
    return steps.select("start_ns", **curves)


def _sums(frame: pl.DataFrame, summand: pl.Expr, name: str) -> pl.DataFrame:
    return frame.group_by("number").agg(summand.sum().cast(pl.Float64).alias(name))


def _moved_bytes() -> pl.Expr:
    """What a piece must at least move: kernels by shapes, copies inside the GPU read and written."""
    twice = 1 + ((pl.col("kind") == "copy") & (direction() == "d2d")).cast(pl.Int64)
    copied = pl.when(pl.col("class") == COPY).then(pl.col("bytes") * twice)
    return pl.when(pl.col("class") <= COMPUTE).then("bytes_moved").otherwise(copied) * pl.col("part")
