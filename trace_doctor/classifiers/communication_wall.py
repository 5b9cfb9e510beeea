"""Collectives that no compute hides (ATTRIBUTION section 4, "Exposed communication")."""

from __future__ import annotations

import polars as pl

from trace_doctor.classifiers import charges
from trace_doctor.classifiers.charges import Row, charge, of_class
from trace_doctor.classifiers.timeline import COMMUNICATION

WIRE = "wire time"


def expected_bandwidth(
    activities: pl.DataFrame, *, link_bandwidth: float | None, node_devices: int | None, world_size: int | None
) -> pl.DataFrame:
    """Bus bandwidth to be expected of each collective, in B/s: `expected_bandwidth` and its basis.

    The link's specification where the group stays inside one machine; else the fastest instance that the trace shows of the group.
    `activities`: communication kernels with `wire_bytes`, `group`, `group_size`, `duration_ns`.
    """
    size = pl.col("group_size").fill_null(pl.lit(world_size, pl.Int64))
    inside = (size <= node_devices) if node_devices and link_bandwidth else pl.lit(value=False)
    seen = (1e9 * pl.col("wire_bytes") / pl.col("duration_ns").clip(lower_bound=1)).max().over("group")
    return activities.with_columns(
        expected_bandwidth=pl.when(inside).then(pl.lit(link_bandwidth, pl.Float64)).otherwise(seen),
        wire_basis=pl.when(inside)
        .then(pl.lit("modelled", pl.Categorical))
        .otherwise(pl.lit("estimated", pl.Categorical)),
    )


def charge_communication(pieces: pl.DataFrame) -> pl.DataFrame:
    """Charges of exposed collectives seen from one rank: pipeline waits, wire time, and what one rank can't tell apart.

    `pieces`: of all classes, with `is_pipeline`, `wire_bytes`, `expected_bandwidth`, `wire_basis`.
    """
    measures = ("part", "is_pipeline", "wire_bytes", "expected_bandwidth", "wire_basis")
    wire = 1e9 * pl.col("wire_bytes") * pl.col("part") / pl.col("expected_bandwidth")
    rows = (
        of_class(pieces, COMMUNICATION, *measures)
        .with_columns(wire_ns=pl.min_horizontal(wire.fill_null(0.0).clip(lower_bound=0), "exclusive_ns"))
        .with_columns(rest_ns=pl.col("exclusive_ns") - pl.col("wire_ns"))
    )
    bubble = pl.col("is_pipeline")
    return pl.concat(
        [
            charge(rows.filter(bubble), charges.PIPELINE_BUBBLE, "exclusive_ns"),
            charge(rows.filter(~bubble), Row("communication", WIRE, "modelled"), "wire_ns", basis="wire_basis"),
            charge(rows.filter(~bubble), charges.WAITING_OR_SLOW, "rest_ns"),
        ]
    )
