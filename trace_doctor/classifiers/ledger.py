"""One GPU's account: every nanosecond of its window in one row, by the charges of the other classifiers."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from trace_doctor.classifiers import charges
from trace_doctor.classifiers.communication_wall import charge_communication
from trace_doctor.classifiers.compute import charge_tensor, roofline_times, spread_model_flops
from trace_doctor.classifiers.host import explain_gaps
from trace_doctor.classifiers.intervals import cut, share_out
from trace_doctor.classifiers.memory_wall import charge_compute, charge_copies, floor_ns
from trace_doctor.classifiers.timeline import COMMUNICATION, COMPUTE, COPY, IDLE, TENSOR, Timeline, by_activity, sweep
from trace_doctor.errors import UsageError
from trace_doctor.hardware.devices import Device
from trace_doctor.options import Thresholds
from trace_doctor.report import WALLS, LedgerRow, Partition, Top
from trace_doctor.trace import Trace, Window

TOP_NAMES = 3
SLICE_ROWS = 1 << 19
MOST_IDEAL_NS = 1 << 53
DAY_NS = 86_400_000_000_000


class Account(NamedTuple):
    """What the classifiers found of one GPU."""

    timeline: Timeline
    tensor: pl.DataFrame
    """Tensor pieces with their roofline times."""
    charges: pl.DataFrame
    """Columns: charges.SCHEMA."""
    window_ns: int
    floor_ns: float
    """Duration that no kernel goes below."""


class Analysis(NamedTuple):
    """One GPU of one trace, accounted for."""

    trace: Trace
    window: Window
    number: int
    """Position in trace.meta.devices."""
    device: Device
    peak_dtype: str | None
    peak_flops: float | None
    account: Account

    @property
    def spans(self) -> pl.DataFrame:
        """This GPU's part of the window: number, start_ns, end_ns."""
        return self.window.spans.filter(pl.col("device") == self.number)


def account(
    trace: Trace,
    activities: pl.DataFrame,
    spans: pl.DataFrame,
    *,
    peak_flops: float | None,
    memory_bandwidth: float | None,
    model_flops: float | None,
    thresholds: Thresholds,
) -> Account:
    """Sweep one GPU's window and charge it.

    `activities`: this GPU's, with what work and hardware know of them (`pipeline.describe`); `spans`: its part of the window;
    `model_flops`: the model's own count for this GPU over the whole window, where the user gave one.
    """
    timeline = sweep(activities, spans)
    floor = floor_ns(
        activities.select("duration_ns", "bytes_moved", "kind", "tensor").filter(
            pl.col("kind") == "compute", ~pl.col("tensor")
        ),
        memory_bandwidth=memory_bandwidth,
        thresholds=thresholds,
    )
    segments = explain_gaps(timeline.gaps, trace, activities, timeline.pieces, thresholds=thresholds)
    idle = _gap_charges(segments, spans)
    kernels = by_activity(timeline.pieces)
    tensor, homeless = kernels.filter(pl.col("class") == TENSOR), 0.0
    if model_flops is not None:
        tensor, homeless = spread_model_flops(tensor, model_flops)
    tensor = roofline_times(tensor, peak_flops=peak_flops, memory_bandwidth=memory_bandwidth)
    if peak_flops:
        _check_flops(float(tensor["ideal_ns"].sum()) + 1e9 * abs(homeless) / peak_flops, peak_flops)
    parts = [
        charge_tensor(tensor),
        charge_compute(kernels, floor=floor, memory_bandwidth=memory_bandwidth),
        charge_communication(kernels),
        charge_copies(kernels, thresholds=thresholds),
        idle,
        _homeless(homeless, peak_flops),
    ]
    window_ns = int((spans["end_ns"] - spans["start_ns"]).sum())
    return Account(timeline, tensor, pl.concat(parts), window_ns, floor)


def _gap_charges(segments: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    return cut(segments, spans, keep=["number"]).select(
        pl.lit(IDLE, pl.Int32).alias("class"),
        "number",
        "wall",
        "cause",
        "basis",
        (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64).alias("time_ns"),
        "name",
        op="op_name",
        activity="activity",
        start_ns="start_ns",
    )


def _check_flops(ideal_ns: float, peak_flops: float) -> None:
    """Raises UsageError for FLOPs that take so long at the peak that a float64 holds no ns of it."""
    if ideal_ns > MOST_IDEAL_NS:
        msg = f"at a peak of {peak_flops:.3g} FLOP/s the FLOPs of the window would take {ideal_ns / DAY_NS:,.0f} days"
        raise UsageError(
            msg, hint="check --flops-per-step, --params and --tokens-per-step, and --peak-flops or --device"
        )


def _homeless(flops: float, peak_flops: float | None) -> pl.DataFrame:
    """Model FLOPs that no kernel holds: they count to the MFU row, and their time is model error."""
    if not flops or not peak_flops:
        return pl.DataFrame(schema=charges.SCHEMA)
    ideal_ns = 1e9 * flops / peak_flops
    rows = [(charges.MFU, ideal_ns), (charges.MODEL_ERROR, -ideal_ns)]
    return pl.DataFrame(
        [(TENSOR, None, row.wall, row.cause, row.basis, time_ns, None, None, None, None) for row, time_ns in rows],
        schema=charges.SCHEMA,
        orient="row",
    )


def partition(timeline: Timeline) -> Partition:
    """The window by what ran."""
    held = timeline.held_ns
    return Partition(
        compute_ns=held[TENSOR] + held[COMPUTE],
        communication_ns=timeline.communication_ns,
        exposed_communication_ns=held[COMMUNICATION],
        overlapped_communication_ns=timeline.communication_ns - held[COMMUNICATION],
        exposed_copy_ns=held[COPY],
        idle_ns=held[IDLE],
    )


def model_error_ns(account: Account) -> float:
    """Time that FLOPs and peak miss, but of Winograd and FFT convolutions, which do less than is counted."""
    honest = account.tensor.filter("multiplies_less")["activity"]
    errors = account.charges.select("cause", "activity", "time_ns").filter(pl.col("cause") == charges.MODEL_ERROR.cause)
    return float(errors.filter(~pl.col("activity").is_in(honest.implode()).fill_null(value=False))["time_ns"].sum())


def ledger(account: Account) -> list[LedgerRow]:
    """The rows of one GPU in integer ns; each class of the sweep sums to what it held, so the whole sums to the window."""
    sums = summed(account.charges, "class", "wall", "cause")
    sums = sums.with_columns(pl.col("wall", "cause", "basis").cast(pl.String)).sort("class", "wall", "cause")
    whole = pl.concat(
        [
            rows.with_columns(time_ns=share_out(rows.select("time_ns"), account.timeline.held_ns[rows["class"][0]]))
            for rows in sums.partition_by("class", maintain_order=True)
        ]
        or [sums.with_columns(pl.col("time_ns").cast(pl.Int64))]
    )
    return rows_of(summed(whole, "wall", "cause"), account.window_ns, tops(account.charges))


def summed(parts: pl.DataFrame, *by: str) -> pl.DataFrame:
    """`time_ns` of each group, with the `basis` of its largest part."""
    of_basis = _grouped(parts.select(*by, "basis", "time_ns"))
    ranked = of_basis.sort("largest", descending=True, maintain_order=True)
    return ranked.group_by(*by, maintain_order=True).agg(pl.col("time_ns").sum(), pl.col("basis").first())


def tops(all_charges: pl.DataFrame, *, gpus: int = 1) -> dict[tuple[str, str], list[Top]]:
    """The largest contributors of each row, as means over the GPUs that the charges are of."""
    ranked = (
        _grouped(all_charges.select("wall", "cause", "name", "op", "time_ns"))
        .filter(pl.col("name").is_not_null())
        .with_columns(
            pl.col("wall", "cause", "name", "op").cast(pl.String),
            (pl.col("time_ns") / gpus).round().cast(pl.Int64),
            (pl.col("count") / gpus).ceil().cast(pl.Int64),
        )
        .sort(["time_ns", "name", "op"], descending=[True, False, False])
        .group_by("wall", "cause", maintain_order=True)
        .head(TOP_NAMES)
        .select("wall", "cause", "name", "op", "time_ns", "count")
    )
    found: dict[tuple[str, str], list[Top]] = {}
    for wall, cause, name, op, time_ns, count in ranked.iter_rows():
        found.setdefault((wall, cause), []).append(Top(name=name, op=op, time_ns=time_ns, count=count))
    return found


def _grouped(parts: pl.DataFrame) -> pl.DataFrame:
    """One row for each value of the other columns: sum of `time_ns`, its `largest` part, and `count`.

    Slice by slice: grouping millions of rows by many columns at once takes more memory than they do.
    """
    by = [name for name in parts.columns if name != "time_ns"]
    time_ns = pl.col("time_ns")
    slices = [
        rows.group_by(by, maintain_order=True).agg(time_ns.sum(), largest=time_ns.abs().max(), count=pl.len())
        for rows in (parts.clear(), *parts.iter_slices(SLICE_ROWS))
    ]
    return (
        pl.concat(slices)
        .group_by(by, maintain_order=True)
        .agg(time_ns.sum(), pl.col("largest").max(), pl.col("count").sum())
    )


def rows_of(sums: pl.DataFrame, window_ns: int, top: dict[tuple[str, str], list[Top]]) -> list[LedgerRow]:
    """Rows of `sums` (wall, cause, basis, time_ns as Int64) in the order of the walls, largest first."""
    order = pl.col("wall").replace_strict({wall: place for place, wall in enumerate(WALLS)}, return_dtype=pl.Int32)
    ranked = sums.filter(pl.col("time_ns") != 0).sort(order, -pl.col("time_ns"), "cause")
    return [
        LedgerRow(
            wall=wall,
            cause=cause,
            time_ns=time_ns,
            share=time_ns / window_ns,
            mfu_points=100 * time_ns / window_ns,
            basis=basis,
            top=top.get((wall, cause), []),
        )
        for wall, cause, basis, time_ns in ranked.select("wall", "cause", "basis", "time_ns").iter_rows()
    ]
