"""MFU and what stands beside it, of one GPU and of all."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from trace_doctor.accounts import counters
from trace_doctor.accounts.utilisations import mean_utilisations, utilisations_of
from trace_doctor.accounts.weights import weighted
from trace_doctor.accounts.workload import covered, job_flops
from trace_doctor.classifiers import charges
from trace_doctor.classifiers.ledger import Analysis, partition
from trace_doctor.options import Options
from trace_doctor.report import Gpu, LedgerRow, Metrics, StepTime

HALF_COVERED = 0.5
FASTER_DTYPE_SHARE = 0.1


def used_durations(analysis: Analysis) -> pl.Series:
    """Lengths of the used steps in ns; none without steps."""
    spans = analysis.spans.filter(pl.col("number").is_not_null())
    return spans["end_ns"] - spans["start_ns"]


def step_time(durations_ns: pl.Series) -> StepTime:
    """Statistics of the used steps; null without steps."""
    if durations_ns.is_empty():
        return StepTime()
    mean, median, p90 = durations_ns.mean(), durations_ns.median(), durations_ns.quantile(0.9, "linear")
    return StepTime(mean=mean, median=median, min=durations_ns.min(), max=durations_ns.max(), p90=p90)  # type: ignore[arg-type]


def row_ns(rows: Sequence[LedgerRow], row: charges.Row) -> int:
    """Time of one row of a ledger, 0 where it is not there."""
    return sum(r.time_ns for r in rows if (r.wall, r.cause) == (row.wall, row.cause))


def metrics_of(analysis: Analysis, rows: Sequence[LedgerRow], options: Options) -> Metrics:
    """The metrics of one GPU; `rows`: its ledger."""
    window_ns = analysis.account.window_ns
    parts = partition(analysis.account.timeline)
    sampled = counters.counters_of(analysis)
    active = counters.share(sampled, "tensor_active")
    low, high, is_proven = _mfu_bounds(analysis, rows, options)
    if not is_proven:
        high = _bounded(high, active, analysis)
    mfu = low if is_proven else None
    recompute = row_ns(rows, charges.RECOMPUTE) / window_ns
    communication = parts.communication_ns
    durations = used_durations(analysis)
    tokens = options.tokens_per_step
    step_ns = durations.mean()
    utilisations = utilisations_of(analysis, sampled)
    used = {utilisation.name: utilisation.value for utilisation in utilisations}
    return Metrics(
        mfu=mfu,
        mfu_low=low,
        mfu_high=high,
        hfu=active if mfu is None else mfu + recompute,
        mfu_by_peak={} if mfu is None else _by_peak(analysis, rows),
        achieved_flops=None if mfu is None or analysis.peak_flops is None else mfu * analysis.peak_flops,
        tokens_per_s=1e9 * tokens / step_ns if tokens and isinstance(step_ns, float) and step_ns > 0 else None,
        gpu_utilisation=used["gpu"],
        tensor_share=used["tensor"],
        memory_bandwidth_utilisation=used["memory_bandwidth"],
        pcie_utilisation=used["pcie"],
        link_utilisation=used.get("link"),
        communication_overlap=parts.overlapped_communication_ns / communication if communication else None,
        tensor_active=active,
        utilisations=utilisations,
        counters=sampled,
    )


def _bounded(high: float | None, active: float | None, analysis: Analysis) -> float | None:
    """At most this much MFU: no more than the share of the time in which the tensor pipes were active.

    Work in a faster dtype than the peak's does more in that time; inside a graph recorded whole any dtype may have run.
    """
    if active is None or analysis.peak_flops is None:
        return high
    pieces = analysis.account.timeline.pieces
    is_opaque = (pieces["kind"] == "graph").any()
    ran = analysis.device.peaks if is_opaque else set(analysis.account.tensor["ran_in"].drop_nulls())
    fastest = max((analysis.device.peaks.get(dtype, 0.0) for dtype in ran), default=0.0)
    bound = min(active * max(1.0, fastest / analysis.peak_flops), 1.0)
    return bound if high is None else min(high, bound)


def _mfu_bounds(
    analysis: Analysis, rows: Sequence[LedgerRow], options: Options
) -> tuple[float | None, float | None, bool]:
    """What is proven, what may be on top, and whether the first may be called MFU (ATTRIBUTION section 6)."""
    if analysis.peak_flops is None:
        return None, None, False
    window_ns = analysis.account.window_ns
    low = row_ns(rows, charges.MFU) / window_ns
    if job_flops(options) is not None:
        return low, low, True
    known = covered(analysis.account.tensor)
    if known.tensor_ns <= 0 or known.covered_ns < HALF_COVERED * known.tensor_ns:
        proven = low if known.covered_ns > 0 else None
        bound = (proven or 0.0) + _missing_ns(analysis, efficiency=1.0) / window_ns
        return proven, min(bound, 1.0) if known.tensor_ns > 0 else None, False
    efficiency = low * window_ns / known.covered_ns
    high = low + _missing_ns(analysis, efficiency=efficiency) / window_ns
    return low, min(high, max(low, 1.0)), True


def _missing_ns(analysis: Analysis, *, efficiency: float) -> float:
    """Time at peak of the tensor kernels without FLOPs: at this efficiency, or what their shapes allow at most where that is less."""
    missing = analysis.account.tensor.filter(pl.col("flops").is_null())
    at_most = 1e9 * pl.col("flops_most") * pl.col("part") / analysis.peak_flops
    return float(missing.select(pl.min_horizontal(efficiency * pl.col("exclusive_ns"), at_most)).to_series().sum())


def _by_peak(analysis: Analysis, rows: Sequence[LedgerRow]) -> dict[str, float]:
    """MFU against the peak of a faster dtype that did more than a tenth of the tensor FLOPs."""
    if analysis.peak_flops is None:
        return {}
    work = analysis.account.tensor.filter(pl.col("flops").is_not_null() & ~pl.col("recompute"))
    by_dtype = work.group_by("ran_in").agg(flops=(pl.col("flops") * pl.col("part")).sum())
    total = float(by_dtype["flops"].sum())
    mfu_flops = row_ns(rows, charges.MFU) * analysis.peak_flops / analysis.account.window_ns
    return {
        dtype: mfu_flops / peak
        for dtype, flops in by_dtype.sort("ran_in").iter_rows()
        if dtype
        and (peak := analysis.device.peaks.get(dtype, 0)) > analysis.peak_flops
        and flops > FASTER_DTYPE_SHARE * total
    }


def mean_metrics(gpus: Sequence[Gpu]) -> Metrics:
    """Means over GPUs, weighted by their windows, so that MFU is the MFU row over the window."""
    if len(gpus) == 1:
        return gpus[0].metrics
    weights = [gpu.window.duration_ns for gpu in gpus]
    fields = [name for name in Metrics.__struct_fields__ if name not in ("mfu_by_peak", "utilisations", "counters")]
    by_peak = {
        dtype: weighted([gpu.metrics.mfu_by_peak.get(dtype) for gpu in gpus], weights)
        for dtype in sorted({dtype for gpu in gpus for dtype in gpu.metrics.mfu_by_peak})
    }
    return Metrics(
        mfu_by_peak={dtype: mfu for dtype, mfu in by_peak.items() if mfu is not None},
        utilisations=mean_utilisations([gpu.metrics.utilisations for gpu in gpus], weights),
        counters=counters.mean_counters([gpu.metrics.counters for gpu in gpus], weights),
        **{name: weighted([getattr(gpu.metrics, name) for gpu in gpus], weights) for name in fields},
    )
