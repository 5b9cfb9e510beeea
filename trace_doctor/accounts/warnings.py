"""What the reader must know: the loader's and the window's warnings, and peaks and FLOPs that can't be right."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from trace_doctor.accounts.counters import memory_share
from trace_doctor.accounts.metrics import row_ns
from trace_doctor.accounts.workload import ShapeWork, job_flops, model_flops, shape_work
from trace_doctor.classifiers import charges
from trace_doctor.classifiers.compute import counted_flops
from trace_doctor.classifiers.ledger import Analysis, model_error_ns
from trace_doctor.options import Options
from trace_doctor.report import LedgerRow, Message, Metrics, WindowRow
from trace_doctor.trace import Trace

BEATS_PEAK = 1.03
"""A kernel this many times faster than its peak allows: the peak, the count or the dtype is wrong."""
MODEL_ERROR_SHARE = 0.03
MOSTLY_COVERED = 0.9
MOSTLY_KNOWN = 0.95
MOST_KERNELS, LABEL_CHARS = 3, 64
MUCH_MEMORY_WALL = 0.1
IDLE_MEMORY = 0.4
"""Kernels that the memory holds back use more of its bandwidth than this."""
BACKWARD_PER_FORWARD = (1.5, 2.5)
"""A gradient of the input and one of the weights make two; the first layer needs one only."""
FLOPS_TOLERANCE = 0.1
"""Model and shapes differ by less: norms, softmax and conventions."""


def warnings_of(
    analyses: Sequence[Analysis],
    traces: Sequence[Trace],
    rows: Sequence[LedgerRow],
    window: WindowRow,
    options: Options,
) -> list[Message]:
    """All warnings of all GPUs, each once."""
    found = [Message(code=w.code, message=w.message) for trace in traces for w in trace.meta.warnings]
    found += [Message(code=w.code, message=w.message) for a in analyses for w in a.window.warnings]
    for analysis in analyses:
        found += _device_warnings(analysis)
        found += _beaten_peaks(analysis)
        found += _uneven_passes(analysis)
        found += _unknown_flops(analysis)
    found += _model_warnings(analyses, rows, window, options)
    return list(dict.fromkeys(found))


def contradicted(metrics: Metrics, rows: Sequence[LedgerRow]) -> list[Message]:
    """What the GPU's own counters deny: more MFU than tensor activity, a memory wall before a memory that is not busy."""
    found = []
    active, memory = metrics.tensor_active, memory_share(metrics.counters)
    if active is not None and metrics.mfu is not None and metrics.mfu > BEATS_PEAK * active and not metrics.mfu_by_peak:
        text = f"MFU is {metrics.mfu:.1%}, but the tensor pipes were active {active:.1%} of the time: the FLOPs or the peak are wrong"
        found.append(Message(code="mfu-above-tensor-activity", message=text))
    wall = sum(row.share for row in rows if row.wall == "memory")
    if memory is not None and memory < IDLE_MEMORY and wall >= MUCH_MEMORY_WALL:
        text = (
            f"{wall:.0%} of the window is charged to the memory wall, but while kernels without tensor work ran the memory's "
            f"bandwidth was used to {memory:.0%}: they are slow for another reason (access pattern, latency, cache hits)"
        )
        found.append(Message(code="memory-wall-unproven", message=text))
    return found


def _device_warnings(analysis: Analysis) -> list[Message]:
    if analysis.peak_flops is not None:
        return []
    return [Message(code="unknown-peak", message=f"no MFU: the peak of this GPU is not known. {analysis.device.basis}")]


def _beaten_peaks(analysis: Analysis) -> list[Message]:
    """A kernel that beats its peak: a wrong peak or a wrong count; Winograd and FFT convolutions may do so honestly."""
    sums = (
        analysis.account.tensor.lazy()
        .filter(pl.col("dtype_ns").is_not_null() & (pl.col("duration_ns") > 0))
        .group_by("name", "ran_in", "multiplies_less")
        .agg(pl.col("dtype_ns").sum(), took_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .with_columns(ratio=pl.col("dtype_ns") / pl.col("took_ns"), name=pl.col("name").cast(pl.String))
        .filter(pl.col("ratio") > BEATS_PEAK)
        .sort(["dtype_ns", "name"], descending=[True, False])
        .collect()
    )
    honest = pl.col("multiplies_less")
    found = []
    for code, frame, what in (
        ("beats-peak", sums.filter(~honest), "the peak or the FLOP count is wrong"),
        (
            "beats-peak-by-algorithm",
            sums.filter(honest),
            "Winograd and FFT convolutions do fewer multiplications than are counted",
        ),
    ):
        if not frame.is_empty():
            name, dtype, ratio = frame.select("name", "ran_in", "ratio").row(0)
            more = f" and {len(frame) - 1} more" if len(frame) > 1 else ""
            found.append(
                Message(
                    code=code,
                    message=f"{name[:120]}{more} ran at {ratio:.2f} x the {dtype or analysis.peak_dtype} peak: {what}",
                )
            )
    return found


def _uneven_passes(analysis: Analysis) -> list[Message]:
    """A backward pass whose FLOPs are far from twice the forward's, where both are nearly all known; recomputation is neither."""
    known = shape_work(analysis).covered
    once = analysis.account.tensor.filter(~pl.col("recompute"))
    sums = dict(once.group_by("pass").agg((pl.col("flops") * pl.col("part")).sum()).iter_rows())
    forward, backward, others = (float(sums.get(name) or 0) for name in ("forward", "backward", None))
    if known.covered_ns < MOSTLY_COVERED * known.tensor_ns or others > FLOPS_TOLERANCE * (forward + backward):
        return []
    low, high = BACKWARD_PER_FORWARD
    if not forward or not backward or low <= backward / forward <= high:
        return []
    told = (
        f"the backward pass holds {backward / forward:.2f} x the FLOPs of the forward pass ({backward:.4g} and {forward:.4g}), not about"
        " 2 x: frozen weights, evaluation under autograd and single layers need less, a second backward more; else a count is wrong"
    )
    return [Message(code="uneven-passes", message=told)]


def _unknown_flops(analysis: Analysis) -> list[Message]:
    """Which tensor kernels have no FLOPs, where some have: the longest by name, each with the reason."""
    known = shape_work(analysis).covered
    if not known.covered_ns or known.covered_ns > MOSTLY_KNOWN * known.tensor_ns:
        return []
    reason = (
        pl.when(pl.col("flops_most").is_not_null())
        .then(pl.lit("mask or sequence lengths not recorded"))
        .when("has_shapes")
        .then(pl.lit("the inputs of its op do not tell"))
        .otherwise(pl.lit("no shapes recorded"))
    )
    label = pl.coalesce(pl.col("op_name").cast(pl.String) + ": ", pl.lit("")) + pl.col("name").cast(pl.String)
    missing = analysis.account.tensor.filter(pl.col("flops").is_null()).group_by(label=label, reason=reason)
    longest = missing.agg(pl.col("exclusive_ns").sum()).sort(["exclusive_ns", "label"], descending=[True, False])
    told = [
        f"{time_ns / known.tensor_ns:.1%} {label[:LABEL_CHARS]} ({why})"
        for label, why, time_ns in longest.head(MOST_KERNELS).iter_rows()
    ]
    told += [f"{len(longest) - MOST_KERNELS} more"] if len(longest) > MOST_KERNELS else []
    missing_share = 1 - known.covered_ns / known.tensor_ns
    message = f"FLOPs are unknown for {missing_share:.1%} of the time in tensor kernels: {'; '.join(told)}"
    return [Message(code="unknown-flops", message=message)]


def _too_few_shapes(work: ShapeWork, given: float) -> list[Message]:
    """Shapes that cover nearly all the time and yet hold far less than the model counts."""
    share = work.covered.covered_ns / work.covered.tensor_ns if work.covered.tensor_ns else 0.0
    if share < MOSTLY_COVERED or work.flops > (1 - FLOPS_TOLERANCE) * given:
        return []
    told = (
        f"the shapes hold {work.flops / given:.0%} of the model's FLOPs, though they cover {share:.0%} of the time in tensor kernels:"
        " check the model, --tokens-per-step and --world-size (a pipeline stage may hold less than its share)"
    )
    return [Message(code="flops-mismatch", message=told)]


def _model_warnings(
    analyses: Sequence[Analysis], rows: Sequence[LedgerRow], window: WindowRow, options: Options
) -> list[Message]:
    found = []
    mfu = row_ns(rows, charges.MFU) / window.duration_ns if window.duration_ns else 0
    if mfu > 1:
        found.append(
            Message(code="mfu-above-one", message=f"MFU is {mfu:.3g}: the peak, the device or the FLOPs are wrong")
        )
    error = sum(model_error_ns(a.account) for a in analyses)
    busy = sum(sum(a.account.timeline.held_ns[:2]) for a in analyses)
    if busy and abs(error) > MODEL_ERROR_SHARE * busy:
        found.append(
            Message(
                code="model-error",
                message=f"FLOPs and peak miss the kernels' time by {abs(error) / busy:.1%}: one of them is wrong",
            )
        )
    for analysis in analyses:
        given = model_flops(analysis.trace, options, steps=len(analysis.spans))
        by_shapes = counted_flops(analysis.account.tensor)
        if given is not None and by_shapes > given * (1 + 1e-6):
            text = f"the shapes hold {by_shapes:.4g} FLOPs, the model count {given:.4g}: they contradict each other"
            found.append(Message(code="flops-contradiction", message=text))
        elif given is not None:
            found += _too_few_shapes(shape_work(analysis), given)
    if any((analysis.account.tensor["recompute"]).any() for analysis in analyses):
        found.append(
            Message(
                code="recompute",
                message="activation recomputation found: it counts to HFU (hardware FLOPs utilisation), not to MFU",
            )
        )
    if job_flops(options) is not None and not window.steps:
        found.append(
            Message(
                code="one-step-assumed",
                message="no steps in the trace: the window is taken as one step of the FLOPs given",
            )
        )
    return found
