"""Where the FLOPs of a step come from, and how much of the tensor kernels' time they cover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from trace_doctor.classifiers.compute import counted_flops
from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.classifiers.timeline import TENSOR
from trace_doctor.options import Options
from trace_doctor.report import WindowRow, Workload
from trace_doctor.trace import Trace


def model_flops(trace: Trace, options: Options, *, steps: int) -> float | None:
    """The model's own FLOPs of one GPU over `steps` steps, where the user gave them: of the job, divided by its GPUs."""
    of_job = job_flops(options)
    return None if of_job is None else of_job * steps / world_size(trace, options)


def job_flops(options: Options) -> float | None:
    """Model FLOPs of one step of the whole job: as given, or 6 x parameters x tokens (forward and backward, Kaplan 2020)."""
    if options.flops_per_step is not None:
        return options.flops_per_step
    params = options.active_params or options.params
    if params is not None and options.tokens_per_step is not None:
        return 6 * params * options.tokens_per_step
    return None


def world_size(trace: Trace, options: Options) -> int:
    """GPUs of the job: as given, as the trace says, else the GPUs of the file."""
    return options.world_size or trace.meta.world_size or max(1, trace.activities["device"].n_unique())


class Covered(NamedTuple):
    """Exclusive time of the tensor kernels with FLOPs, and of all of them."""

    covered_ns: float
    tensor_ns: float


def covered(tensor: pl.DataFrame) -> Covered:
    """How much of the tensor pieces' time has known FLOPs."""
    known = tensor.filter(pl.col("flops").is_not_null())
    return Covered(float(known["exclusive_ns"].sum()), float(tensor["exclusive_ns"].sum()))


def covered_share(tensor: pl.DataFrame) -> float | None:
    """Share of the tensor kernels' time whose FLOPs are known; null without tensor kernels."""
    known = covered(tensor)
    return min(known.covered_ns / known.tensor_ns, 1.0) if known.tensor_ns > 0 else None


class ShapeWork(NamedTuple):
    """What the shapes of a trace say of one GPU's window."""

    flops: float
    covered: Covered


def shape_work(analysis: Analysis) -> ShapeWork:
    """Model FLOPs of the tensor kernels by their shapes alone, whatever a model says, and the time that they cover."""
    pieces = analysis.account.timeline.pieces.select("class", "recompute", "flops", "part", "exclusive_ns")
    pieces = pieces.filter(pl.col("class") == TENSOR)
    return ShapeWork(counted_flops(pieces), covered(pieces))


def workload_of(
    analyses: Sequence[Analysis],
    window: WindowRow,
    options: Options,
    tensor: pl.DataFrame,
    *,
    tensor_active: float | None = None,
) -> Workload:
    """FLOPs of a step of one GPU and their basis; `tensor`: the tensor pieces of all GPUs.

    Without any FLOPs, the sampled activity of the tensor pipes is what there is: hardware FLOPs, not the model's.
    """
    steps = sum(step.used for step in window.steps) or 1
    share = covered_share(tensor)
    if (of_job := job_flops(options)) is not None:
        given = options.flops_per_step is not None
        gpus = world_size(analyses[0].trace, options)
        named = options.flops_formula or "as given with --flops-per-step"
        formula = named if given else "6 x parameters x tokens (no attention term)"
        by_shapes = [shape_work(analysis) for analysis in analyses]
        tensor_ns = sum(work.covered.tensor_ns for work in by_shapes)
        return Workload(
            flops_basis="model",
            formula=f"{formula}, divided by {gpus} GPU{'s' if gpus > 1 else ''}",
            model_flops_per_step=of_job / gpus,
            tokens_per_step=options.tokens_per_step,
            covered_share=share,
            shape_flops_per_step=sum(work.flops for work in by_shapes) / len(analyses) / steps,
            shape_covered_share=sum(work.covered.covered_ns for work in by_shapes) / tensor_ns if tensor_ns else None,
        )
    if not share:
        sampled = (
            "time in which the tensor pipes were active (GPU metrics): hardware FLOPs, an upper bound for the model's"
        )
        return Workload(
            flops_basis=None if tensor_active is None else "gpu_metrics",
            formula=None if tensor_active is None else sampled,
            tokens_per_step=options.tokens_per_step,
            covered_share=share,
        )
    flops = counted_flops(tensor) / len(analyses) / steps
    return Workload(
        flops_basis="shapes",
        formula="sum over the tensor ops by their recorded shapes; causal attention counts half, its backward twice the forward",
        model_flops_per_step=flops,
        tokens_per_step=options.tokens_per_step,
        covered_share=share,
    )
