"""The kernel table: what took the time, how much work it was, and how near it came to the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from trace_doctor.classifiers import charges, roofline
from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.classifiers.timeline import by_activity
from trace_doctor.hardware import devices
from trace_doctor.options import Options
from trace_doctor.report import KernelRow, Kernels, Roofline, Spread
from trace_doctor.work.scopes import MODULE_INSTANCE, MODULE_PREFIX, scope

MANY_KERNELS = 100
NO_GROUP = {
    "kernel": "(no name)",
    "op": "(no op recorded)",
    "module": "(outside every module)",
    "annotation": "(outside every annotation)",
}
HALF_KNOWN = 0.5
MEMBERS = [
    *("activity", "op_name", "duration_ns", "kind", "family", "tensor", "ran_in", "flops", "bytes_moved"),
    *("kernel_peak_flops", "end_ns", "length_ns", "exclusive_ns", "visible_ns", "overlapped_ns", "part"),
]
"""What is read of a piece, and what its activity sums up."""


def kernel_table(analyses: Sequence[Analysis], options: Options) -> Kernels:
    """The largest groups of activities by exclusive time; `options.group_by` says of what."""
    members = pl.concat([_members(analysis, options) for analysis in analyses], how="diagonal_relaxed")
    floor_ns = max(analysis.account.floor_ns for analysis in analyses)
    groups = _groups(members).with_columns(
        pl.col("name").fill_null(NO_GROUP[options.group_by]),
        bound=roofline.bound(floor_ns=floor_ns),
    )
    ranked = groups.sort(["time_ns", "name"], descending=[True, False])
    kept = ranked.head(max(MANY_KERNELS, options.top_kernels))
    window_ns = sum(analysis.account.window_ns for analysis in analyses)
    return Kernels(
        group_by=options.group_by,
        shown=options.top_kernels,
        rows=[_row(values, len(analyses), window_ns) for values in kept.iter_rows(named=True)],
        more=len(ranked) - len(kept),
        more_ns=round(ranked.slice(len(kept))["time_ns"].sum() / len(analyses)),
    )


def below_the_roofline(analyses: Sequence[Analysis]) -> Roofline:
    """How the time below the roofline splits into what physics keeps and what can be won; means over GPUs."""
    below, kept = 0.0, 0.0
    for analysis in analyses:
        share = best_share(analysis)
        if share is None or analysis.peak_flops is None:
            return Roofline()
        tensor = analysis.account.tensor
        lost = analysis.account.charges.filter(pl.col("cause") == charges.BELOW_ROOFLINE.cause)
        below += float(lost["time_ns"].sum())
        roofs = roofline.roofs(tensor, memory_bandwidth=analysis.device.memory_bandwidth, best_share=share)
        kept += roofline.kept_by_physics(roofs)
    count = len(analyses)
    below_ns = round(below / count)
    kept_ns = min(round(kept / count), below_ns)
    return Roofline(below_ns=below_ns, kept_ns=kept_ns, winnable_ns=below_ns - kept_ns)


def best_share(analysis: Analysis) -> float | None:
    """What the best matmul was measured to reach of the device's 16-bit peak; other dtypes are taken to lose as much."""
    device = analysis.device
    peak = devices.peak(device, "bf16") or devices.peak(device, "fp16")
    return device.best_matmul_flops / peak if device.best_matmul_flops and peak else None


def _members(analysis: Analysis, options: Options) -> pl.DataFrame:
    """One row per activity with its group's name, its work and its roofs; FLOPs are those of its own shapes."""
    pieces = by_activity(analysis.account.timeline.pieces.select(MEMBERS))
    names = scope(analysis.trace, options.group_by).gather(pieces["activity"])
    if options.group_by == "module":
        names = names.cast(pl.String).str.strip_prefix(MODULE_PREFIX).str.replace(MODULE_INSTANCE, "")
    roofs = roofline.roofs(pieces, memory_bandwidth=analysis.device.memory_bandwidth, best_share=best_share(analysis))
    return roofs.select(
        names.alias("name"),
        "op_name",
        "duration_ns",
        "exclusive_ns",
        "length_ns",
        "compute_ns",
        "memory_ns",
        "roof_ns",
        "best_ns",
        label=pl.coalesce(pl.col("family").cast(pl.Categorical), pl.col("kind").cast(pl.Categorical)),
        ran_in=pl.when("tensor").then("ran_in"),
        flops=pl.col("flops") * pl.col("part"),
        bytes_moved=pl.col("bytes_moved") * pl.col("part"),
        known=pl.when("tensor").then(pl.col("flops").is_not_null()).otherwise(pl.col("bytes_moved").is_not_null()),
    )


def _groups(members: pl.DataFrame) -> pl.DataFrame:
    """One row per name. Work and roofs are sums over the activities whose work is known, null where they hold less than half the time."""
    work = ["flops", "bytes_moved", "compute_ns", "memory_ns", "roof_ns", "best_ns"]
    known = pl.col("known")
    groups = members.group_by("name").agg(
        *(pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).filter(known).sum()) for name in work),
        count=pl.len(),
        known=known.sum(),
        time_ns=pl.col("exclusive_ns").sum(),
        length_ns=pl.col("length_ns").sum(),
        known_ns=pl.col("length_ns").filter(known).sum(),
        median_ns=pl.col("duration_ns").median(),
        p95_ns=pl.col("duration_ns").quantile(0.95, "linear"),
    )
    for column in ("label", "op_name", "ran_in"):
        groups = groups.join(_most(members, column), on="name", how="left", nulls_equal=True)
    enough = (pl.col("known_ns") >= HALF_KNOWN * pl.col("length_ns")) & (pl.col("known_ns") > 0)
    return groups.with_columns(
        pl.col("name").cast(pl.String), *(pl.when(enough).then(name).alias(name) for name in work)
    )


def _most(members: pl.DataFrame, column: str) -> pl.DataFrame:
    """For each name the value of `column` that holds most of its time."""
    sums = members.filter(pl.col(column).is_not_null()).group_by("name", column).agg(pl.col("exclusive_ns").sum())
    ranked = sums.with_columns(pl.col(column).cast(pl.String)).sort("exclusive_ns", column)
    return ranked.group_by("name", maintain_order=True).agg(pl.col(column).last())


def _row(values: dict[str, Any], gpus: int, window_ns: int) -> KernelRow:
    flops, moved, known_ns, known = values["flops"], values["bytes_moved"], values["known_ns"], values["known"]

    def rate(amount: float | None) -> float | None:
        return None if amount is None else 1e9 * amount / known_ns

    return KernelRow(
        name=values["name"],
        family=values["label"],
        dtype=values["ran_in"],
        op=values["op_name"],
        count=values["count"],
        time_ns=round(values["time_ns"] / gpus),
        share=values["time_ns"] / window_ns,
        duration_ns=Spread(median=values["median_ns"], p95=values["p95_ns"]),
        flops=None if flops is None else flops / known,
        bytes=None if moved is None else moved / known,
        intensity=flops / moved if flops and moved else None,
        ideal_ns=None if values["roof_ns"] is None else values["roof_ns"] / known,
        achieved_flops=rate(flops),
        achieved_bandwidth=rate(moved),
        efficiency=None if values["roof_ns"] is None else values["roof_ns"] / known_ns,
        best_efficiency=None if values["best_ns"] is None else values["best_ns"] / known_ns,
        bound=values["bound"],
    )
