"""Where a job's start-up ends, in traces without steps: data-parallel wrappers broadcast the parameters, then training begins."""

from __future__ import annotations

import polars as pl

BROADCAST = "(?i)broadcast"
FEW = 2
"""A single broadcast may belong to the first step."""


def ends(launched: pl.DataFrame) -> pl.DataFrame:
    """When the parameters' broadcast ended on each device that shows one: device, started_ns, broadcasts.

    Shown where all broadcasts of the device, two or more, come before its first tensor kernel; buffers that are broadcast in
    each step come after it too. `launched` is `steps.launch_times` of a trace whose kernels are classified.
    """
    if "tensor" not in launched.columns:
        return pl.DataFrame(schema={"device": pl.UInt16, "started_ns": pl.Int64, "broadcasts": pl.UInt32})
    is_broadcast = (pl.col("kind") == "communication") & pl.col("name").cast(pl.String).str.contains(BROADCAST)
    seen = launched.group_by("device").agg(
        broadcasts=is_broadcast.sum(),
        started_ns=pl.col("end_ns").filter(is_broadcast).max(),
        first_ns=pl.col("start_ns").filter(pl.col("tensor")).min(),
    )
    return seen.filter((pl.col("broadcasts") >= FEW) & (pl.col("started_ns") <= pl.col("first_ns"))).drop("first_ns")
