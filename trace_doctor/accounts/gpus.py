"""The row of one GPU: its window, ledger, counts and metrics."""

from __future__ import annotations

import polars as pl

from trace_doctor.accounts.metrics import metrics_of, step_time, used_durations
from trace_doctor.classifiers.capacity import memory_of
from trace_doctor.classifiers.ledger import Analysis, ledger, partition
from trace_doctor.options import Options
from trace_doctor.report import Counts, Gpu, Span


def gpu_row(analysis: Analysis, options: Options) -> Gpu:
    """The row of one GPU; its sums hold exactly."""
    meta, spans = analysis.trace.meta, analysis.spans
    info = meta.devices[analysis.number]
    processes = analysis.account.timeline.pieces["process"].unique()
    process = (
        meta.processes[processes[0]] if len(processes) == 1 and processes[0] is not None and meta.processes else None
    )
    rows = ledger(analysis.account)
    return Gpu(
        rank=meta.rank,
        process=process,
        device=info.label,
        source=meta.path,
        name=info.name or analysis.device.name,
        window=Span(start_ns=spans["start_ns"].min() or 0, duration_ns=analysis.account.window_ns),  # type: ignore[arg-type]
        partition=partition(analysis.account.timeline),
        ledger=rows,
        counts=_counts(analysis),
        step_time_ns=step_time(used_durations(analysis)),
        metrics=metrics_of(analysis, rows, options),
        memory=memory_of(analysis),
    )


def _counts(analysis: Analysis) -> Counts:
    pieces = analysis.account.timeline.pieces.select("activity", "kind", "call", "process")
    # the pieces of an activity stand side by side
    pieces = pieces.filter((pl.col("activity") != pl.col("activity").shift(1)).fill_null(value=True)).drop("activity")
    calls, spans = analysis.trace.calls.select("thread", "start_ns", "kind"), analysis.spans
    kernels = pieces.filter(pl.col("kind").is_in(["compute", "communication"]))
    launched = calls["kind"].gather(kernels["call"].drop_nulls().unique())
    process = pieces["process"].drop_nulls().unique()
    threads = [n for n, thread in enumerate(analysis.trace.meta.threads) if thread.process in process]
    during = pl.lit(value=False)
    for start_ns, end_ns in spans.select("start_ns", "end_ns").iter_rows():
        during = during | ((pl.col("start_ns") >= start_ns) & (pl.col("start_ns") < end_ns))
    asking = calls.filter(pl.col("kind").is_in(["synchronisation", "malloc", "free"]))
    kinds = dict(asking.filter(pl.col("thread").is_in(threads) & during).group_by("kind").len().iter_rows())
    return Counts(
        kernels=len(kernels),
        communication_kernels=len(kernels.filter(pl.col("kind") == "communication")),
        copies=len(pieces.filter(pl.col("kind").is_in(["copy", "set"]))),
        launches=len(launched),
        graph_launches=int((launched == "graph_launch").sum()),
        synchronisations=kinds.get("synchronisation", 0),
        mallocs=kinds.get("malloc", 0),
        frees=kinds.get("free", 0),
    )
