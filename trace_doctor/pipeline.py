"""`analyze`: from files to one report, each stage a function of the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from trace_doctor import mfu, redaction
from trace_doctor.accounts.assembly import assemble
from trace_doctor.accounts.warnings import BEATS_PEAK
from trace_doctor.accounts.workload import model_flops
from trace_doctor.classifiers.communication_wall import expected_bandwidth
from trace_doctor.classifiers.ledger import Analysis, account
from trace_doctor.errors import NothingToAnalyzeError
from trace_doctor.fixes import registry
from trace_doctor.hardware import devices
from trace_doctor.hardware.devices import Device
from trace_doctor.loaders import source, sparing, steps
from trace_doctor.options import Options
from trace_doctor.report import Report
from trace_doctor.trace import Trace, Window
from trace_doctor.work import collectives, kernels, operators

Progress = Callable[[int, int], None]


class Diagnosis(NamedTuple):
    """A report, and what it was made from."""

    report: Report
    analyses: tuple[Analysis, ...]
    """One a GPU, in the order of `report.gpus`."""


def analyze(paths: Sequence[str | Path], options: Options | None = None, *, progress: Progress | None = None) -> Report:
    """Analyse trace files, folders or globs: one report, a row a GPU.

    `progress` is called with bytes read and bytes in all. Raises TraceDoctorError where a file can't be read or holds no GPU activity.
    """
    return diagnose(paths, options, progress=progress).report


def diagnose(
    paths: Sequence[str | Path], options: Options | None = None, *, progress: Progress | None = None
) -> Diagnosis:
    """The same as `analyze`, with what the report was made from."""
    options = mfu.with_model(options or Options())
    files = source.find([str(path) for path in paths])
    total = sum(source.size_bytes(file) for file in files)
    done, analyses = 0, []
    for file in files:
        shift = _shifted(progress, done, total)
        analyses += examine(source.load(file, jobs=options.jobs, nsys=options.nsys, progress=shift), options)
        done += source.size_bytes(file)
    report = registry.diagnose(assemble(analyses, options), analyses, options)
    if options.redact:
        report = redaction.redact(report, kernel_names(analyses))
    return Diagnosis(report, tuple(analyses))


def kernel_names(analyses: Sequence[Analysis]) -> frozenset[str]:
    """Names of all GPU activities."""
    return frozenset(name for a in analyses for name in a.account.timeline.pieces["name"].unique().cast(pl.String))


def _shifted(progress: Progress | None, done: int, total: int) -> Progress | None:
    return None if progress is None else lambda part, _: progress(done + part, total)


def examine(trace: Trace, options: Options) -> list[Analysis]:
    """Analyse one trace: an account for each of its GPUs that has a window. Raises NothingToAnalyzeError where none has."""
    trace = kernels.classify(trace, options.kernel_patterns)
    window = steps.find(trace, options)
    lasting = set(window.spans.filter(pl.col("end_ns") > pl.col("start_ns"))["device"])
    if not lasting:
        msg = "no GPU activity took any time, so there is nothing to account for"
        raise NothingToAnalyzeError(msg, where=trace.meta.path, hint="record more of the run, or use --whole-trace")
    activities = describe(trace)
    return [
        _examine_gpu(trace, window, number, sparing.keep(activities, pl.col("device") == number), options)
        for number in sorted(lasting)
    ]


def describe(trace: Trace) -> pl.DataFrame:
    """The activities with all that is known of their work: FLOPs, bytes, dtype, recompute, collective fields, name of the op."""
    work = operators.estimate(trace).select(
        "flops", "flops_most", "bytes_moved", "op_dtype", "recompute", "pass", "has_shapes", "op_row", "multiplies_less"
    )
    wire = collectives.estimate(trace).select(
        "activity", "operation", "group", "group_size", "message_bytes", "wire_bytes", "is_pipeline"
    )
    return (
        trace.activities.drop("correlation", "op", "block")
        .hstack(work)
        .with_columns(op_name=trace.ops["name"].gather(trace.activities["op"]))
        .join(wire, on="activity", how="left", maintain_order="left")
        .with_columns(pl.col("is_pipeline").fill_null(value=False), pl.col(pl.String).cast(pl.Categorical))
    )


def _examine_gpu(trace: Trace, window: Window, number: int, activities: pl.DataFrame, options: Options) -> Analysis:
    info = trace.meta.devices[number]
    device = devices.identify(info, options)
    peak_dtype = devices.default_peak_dtype(device)
    peak_flops = devices.peak(device, peak_dtype)
    activities = expected_bandwidth(
        with_peaks(activities, device, peak_flops),
        link_bandwidth=device.link_bandwidth,
        node_devices=trace.meta.node_devices,
        world_size=trace.meta.world_size,
    )
    spans = window.spans.filter(pl.col("device") == number)
    return Analysis(
        trace=trace,
        window=window,
        number=number,
        device=device,
        peak_dtype=peak_dtype,
        peak_flops=peak_flops,
        account=account(
            trace,
            activities,
            spans,
            peak_flops=peak_flops,
            memory_bandwidth=device.memory_bandwidth,
            model_flops=model_flops(trace, options, steps=len(spans)),
            thresholds=options.thresholds,
        ),
    )


def with_peaks(activities: pl.DataFrame, device: Device, peak_flops: float | None) -> pl.DataFrame:
    """Adds `ran_in`, the dtype each kernel ran in (its name's, else its op's), and `kernel_peak_flops`, the peak of it (P_k)."""
    ran_in = pl.coalesce("dtype", "op_dtype")
    fp32_peak, tf32_peak = devices.peak(device, "fp32"), devices.peak(device, "tf32")
    fp32_ns = 1e9 * pl.col("flops") / fp32_peak if fp32_peak and tf32_peak else pl.lit(None, pl.Float64)
    too_fast = fp32_ns > BEATS_PEAK * pl.col("duration_ns")
    # an fp32 op whose kernel's name is silent, and that beats the fp32 peak, ran in TF32
    is_tf32 = pl.col("dtype").is_null() & (pl.col("op_dtype") == "fp32") & too_fast
    named = activities.with_columns(
        ran_in=pl.when(is_tf32.fill_null(value=False)).then(pl.lit("tf32", pl.Categorical)).otherwise(ran_in)
    )
    return named.drop("dtype").with_columns(
        kernel_peak_flops=pl.col("ran_in")
        .cast(pl.String)
        .replace_strict(device.peaks, default=peak_flops, return_dtype=pl.Float64)
        .fill_null(pl.lit(peak_flops, pl.Float64))
    )
