"""What the caching allocator holds on each GPU: Kineto's `[memory]` events (profile_memory=True), as metrics."""

from __future__ import annotations

import polars as pl

from trace_doctor.loaders import naming
from trace_doctor.trace import ALLOCATED, RESERVED

EVENT = "[memory]"
_GPUS = (1, 6, 12)
"""CUDA (ROCm's too), HIP and XPU among the device types of c10 (c10/core/DeviceType.h)."""


def sampled(events: pl.DataFrame, devices: naming.Devices) -> pl.DataFrame:
    """Metrics "allocated_bytes" and "reserved_bytes" after each allocation and release, in the order of the file."""
    of_gpus = events.filter(pl.col("device_type").is_in(_GPUS), pl.col("name").cast(pl.String) == EVENT)
    owners = of_gpus["owner"]
    numbers = naming.of_hosts(owners.unique().cast(pl.String), devices)
    placed = of_gpus.with_columns(naming.number(owners, numbers, pl.UInt16).alias("device"))
    levels = placed.select("device", at_ns="start_ns", **{ALLOCATED: pl.col("allocated"), RESERVED: pl.col("reserved")})
    return levels.unpivot(
        index=["device", "at_ns"], on=[ALLOCATED, RESERVED], variable_name="name", value_name="value"
    ).drop_nulls()
