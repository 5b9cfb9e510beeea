"""Compute kernels that are no tensor work, and copies (ATTRIBUTION section 4, second table and "Exposed copies")."""

from __future__ import annotations

import polars as pl

from trace_doctor.classifiers import charges
from trace_doctor.classifiers.charges import Row, charge, of_class
from trace_doctor.classifiers.timeline import COMPUTE, COPY
from trace_doctor.options import Thresholds

TINY_TRAFFIC_NS = 300.0
"""A kernel that moves less than this is nothing but its own overhead."""
ENOUGH_TINY_KERNELS = 20
DEFAULT_FLOOR_NS = 3_000.0


def floor_ns(kernels: pl.DataFrame, *, memory_bandwidth: float | None, thresholds: Thresholds) -> float:
    """Duration that no kernel goes below, in ns: the median of this trace's kernels with next to no traffic.

    `kernels`: compute activities that are no tensor work, with `bytes_moved` and `duration_ns`.
    """
    if thresholds.floor_ns is not None:
        return float(thresholds.floor_ns)
    if not memory_bandwidth:
        return DEFAULT_FLOOR_NS
    tiny = kernels.filter(1e9 * pl.col("bytes_moved") / memory_bandwidth < TINY_TRAFFIC_NS)["duration_ns"]
    median = tiny.median()
    return float(median) if len(tiny) >= ENOUGH_TINY_KERNELS and isinstance(median, (int, float)) else DEFAULT_FLOOR_NS


def charge_compute(pieces: pl.DataFrame, *, floor: float, memory_bandwidth: float | None) -> pl.DataFrame:
    """Charges of the compute kernels among the pieces: traffic to their family, then the floor, then a poor access pattern."""
    measures = ("kind", "family", "duration_ns", "length_ns", "visible_ns", "part", "bytes_moved")
    seen = pl.when(pl.col("length_ns") > 0).then(pl.col("visible_ns") / pl.col("length_ns")).otherwise(1.0)
    traffic = 1e9 * pl.col("bytes_moved") * pl.col("part") * seen
    rows = of_class(pieces, COMPUTE, *measures).with_columns(
        memory_ns=traffic / memory_bandwidth if memory_bandwidth else pl.lit(None, pl.Float64)
    )
    opaque = rows.filter(pl.col("kind") == "graph")
    kernels = rows.filter(pl.col("kind") != "graph")
    return pl.concat(
        [
            _with_traffic(kernels.filter(pl.col("memory_ns").is_not_null()), floor),
            _without_traffic(kernels.filter(pl.col("memory_ns").is_null()), floor),
            charge(opaque, charges.GRAPH_CONTENTS, "exclusive_ns"),
        ]
    )


def _with_traffic(kernels: pl.DataFrame, floor: float) -> pl.DataFrame:
    held = pl.col("exclusive_ns")
    rows = (
        kernels.with_columns(traffic_ns=pl.min_horizontal(held, "memory_ns"))
        .with_columns(short_ns=pl.min_horizontal(held - pl.col("traffic_ns"), floor * pl.col("part")))
        .with_columns(rest_ns=held - pl.col("traffic_ns") - pl.col("short_ns"))
    )
    return pl.concat(
        [
            charge(rows, Row("memory", "", "modelled"), "traffic_ns", cause="family"),
            charge(rows, charges.TOO_SHORT, "short_ns"),
            charge(rows, charges.POOR_ACCESS, "rest_ns"),
        ]
    )


def _without_traffic(kernels: pl.DataFrame, floor: float) -> pl.DataFrame:
    short = pl.col("duration_ns") <= 2 * floor
    unknown = pl.col("family") == "unknown"
    estimated = charges.TOO_SHORT._replace(basis="estimated")
    return pl.concat(
        [
            charge(kernels.filter(short), estimated, "exclusive_ns"),
            charge(kernels.filter(~short & ~unknown), Row("memory", "", "estimated"), "exclusive_ns", cause="family"),
            charge(kernels.filter(~short & unknown), charges.UNKNOWN_KERNEL, "exclusive_ns"),
        ]
    )


def direction() -> pl.Expr:
    """Where a copy goes, from the profiler's name for it: h2d, d2h, p2p, or d2d for the rest."""
    name = pl.col("name").cast(pl.String)
    return (
        pl.when(name.str.contains(r"(?i)PtoP|PeerToPeer|\bp2p\b"))
        .then(pl.lit("p2p"))
        .when(name.str.contains(r"(?i)HtoD|HostToDevice|\bh2d\b|M2D"))
        .then(pl.lit("h2d"))
        .when(name.str.contains(r"(?i)DtoH|DeviceToHost|\bd2h\b|D2M"))
        .then(pl.lit("d2h"))
        .otherwise(pl.lit("d2d"))
    )


def charge_copies(pieces: pl.DataFrame, *, thresholds: Thresholds) -> pl.DataFrame:
    """Charges of the copies and memsets among the pieces that nothing hides."""
    rows = of_class(pieces, COPY, "kind", "bytes", "end_ns")
    rows = rows.with_columns(direction=pl.when(pl.col("kind") == "set").then(pl.lit("d2d")).otherwise(direction()))
    small = pl.col("bytes").fill_null(0) < thresholds.small_copy_bytes
    out = rows.filter((pl.col("direction") == "d2h") & ~small)
    back = _brought_back(rows.filter(pl.col("direction") == "h2d"), out)
    return pl.concat(
        [
            charge(rows.filter(pl.col("direction") == "d2d"), charges.COPY, "exclusive_ns"),
            charge(rows.filter(pl.col("direction") == "p2p"), charges.PEER_COPY, "exclusive_ns"),
            charge(rows.filter((pl.col("direction") == "d2h") & small), charges.SYNCHRONISATION, "exclusive_ns"),
            charge(out, charges.OFFLOAD, "exclusive_ns"),
            charge(back.filter("offloaded"), charges.OFFLOAD, "exclusive_ns"),
            charge(back.filter(~pl.col("offloaded")), charges.INPUT_TRANSFER, "exclusive_ns"),
        ]
    )


def _brought_back(into: pl.DataFrame, out: pl.DataFrame) -> pl.DataFrame:
    """Host-to-device copies, `offloaded` where as many bytes left the device earlier in the same step."""
    left = out.group_by("number", "bytes").agg(left_ns=pl.col("end_ns").min())
    known = into.join(left, on=["number", "bytes"], how="left", nulls_equal=True, maintain_order="left")
    return known.with_columns(offloaded=(pl.col("left_ns") <= pl.col("start_ns")).fill_null(value=False)).drop(
        "left_ns"
    )
