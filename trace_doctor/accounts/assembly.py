"""One report of all GPUs: sums hold in every row, and in the means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version

import polars as pl

from trace_doctor.accounts import means, ranks
from trace_doctor.accounts.coverage import coverage_of
from trace_doctor.accounts.gpus import gpu_row
from trace_doctor.accounts.kernels import below_the_roofline, kernel_table
from trace_doctor.accounts.metrics import mean_metrics
from trace_doctor.accounts.strip import strip_of
from trace_doctor.accounts.warnings import contradicted, warnings_of
from trace_doctor.accounts.window import mean_window, with_steps
from trace_doctor.accounts.workload import workload_of
from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.options import Options, chosen
from trace_doctor.report import DeviceRow, Report, Source, Tool
from trace_doctor.trace import Trace


def assemble(analyses: Sequence[Analysis], options: Options) -> Report:
    """The report of all GPUs: sums hold in every row, and in the means."""
    gpus = ranks.explained(
        [gpu_row(analysis, options) for analysis in analyses], slow_ratio=options.limits.slow_rank_ratio
    )
    window, metrics = mean_window(analyses, outlier_ratio=options.limits.outlier_ratio), mean_metrics(gpus)
    merged_partition = means.mean_partition([gpu.partition for gpu in gpus], window.duration_ns)
    rows = means.mean_ledger(analyses, [gpu.ledger for gpu in gpus], window.duration_ns)
    traces = _unique(analysis.trace for analysis in analyses)
    columns = ["flops", "part", "exclusive_ns", "ideal_ns", "recompute"]
    tensor = pl.concat([analysis.account.tensor.select(columns) for analysis in analyses])
    return Report(
        tool=Tool(version=version("trace-doctor"), options=chosen(options)),
        sources=[_source(trace) for trace in traces],
        device=_device(analyses),
        workload=workload_of(analyses, window, options, tensor, tensor_active=metrics.tensor_active),
        window=window,
        metrics=metrics,
        partition=merged_partition,
        ledger=with_steps(rows, window.steps, analyses),
        gpus=gpus,
        collectives=means.collectives(analyses),
        kernels=kernel_table(analyses, options),
        roofline=below_the_roofline(analyses),
        strip=strip_of(analyses[0]),
        memory=means.fullest_memory(gpus),
        counts=means.sum_counts([gpu.counts for gpu in gpus]),
        coverage=coverage_of(analyses, traces),
        warnings=[*warnings_of(analyses, traces, rows, window, options), *contradicted(metrics, rows)],
    )


def _unique(traces: Iterable[Trace]) -> list[Trace]:
    return list({id(trace): trace for trace in traces}.values())


def _source(trace: Trace) -> Source:
    meta = trace.meta
    return Source(path=meta.path, format=meta.format, rank=meta.rank, size_bytes=meta.size_bytes, sha256=meta.sha256)


def _device(analyses: Sequence[Analysis]) -> DeviceRow:
    device = analyses[0].device
    return DeviceRow(
        name=device.name,
        count=len(analyses),
        peak_flops=dict(device.peaks),
        peak_dtype=analyses[0].peak_dtype if analyses[0].peak_flops else None,
        memory_bandwidth=device.memory_bandwidth,
        link_bandwidth=device.link_bandwidth,
        link=device.link,
        pcie_bandwidth=device.pcie_bandwidth,
        best_matmul_flops=device.best_matmul_flops,
        basis=device.basis,
    )
