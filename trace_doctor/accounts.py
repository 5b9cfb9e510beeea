"""From the accounts of the GPUs to one report: metrics, means over GPUs, coverage, warnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import NamedTuple

import polars as pl

from trace_doctor.classifiers import charges
from trace_doctor.classifiers.compute import counted_flops
from trace_doctor.classifiers.intervals import share_out
from trace_doctor.classifiers.ledger import TOP_NAMES, Analysis, ledger, partition, rows_of, summed, tops
from trace_doctor.classifiers.timeline import COMMUNICATION, COMPUTE, IDLE, TENSOR
from trace_doctor.options import Options
from trace_doctor.report import (
    Abstained,
    Collective,
    Counts,
    Coverage,
    DeviceRow,
    Gpu,
    LedgerRow,
    Message,
    Metrics,
    Partition,
    Report,
    Source,
    Span,
    Spread,
    Step,
    StepTime,
    Tool,
    Trust,
    WindowRow,
    Workload,
)
from trace_doctor.trace import Trace

HALF_COVERED = 0.5
BEATS_PEAK = 1.03
"""A kernel this many times faster than its peak allows: the peak, the count or the dtype is wrong."""
MODEL_ERROR_SHARE = 0.03
FASTER_DTYPE_SHARE = 0.1
MANY_COLLECTIVES = 50


def model_flops(trace: Trace, options: Options, *, steps: int) -> float | None:
    """The model's own FLOPs of one GPU over `steps` steps, where the user gave them: of the job, divided by its GPUs."""
    of_job = job_flops(options)
    return None if of_job is None else of_job * steps / world_size(trace, options)


def job_flops(options: Options) -> float | None:
    """Model FLOPs of one step of the whole job: as given, or 6 x parameters x tokens (forward and backward, Kaplan 2020)."""
    if options.flops_per_step is not None:
        return options.flops_per_step
    if options.params is not None and options.tokens_per_step is not None:
        return 6 * options.params * options.tokens_per_step
    return None


def world_size(trace: Trace, options: Options) -> int:
    """GPUs of the job: as given, as the trace says, else the GPUs of the file."""
    return options.world_size or trace.meta.world_size or max(1, trace.activities["device"].n_unique())


def report(analyses: Sequence[Analysis], options: Options) -> Report:
    """The report of all GPUs: sums hold in every row, and in the means."""
    gpus = [_gpu(analysis, options) for analysis in analyses]
    window = _window(analyses)
    merged_partition = _mean_partition([gpu.partition for gpu in gpus], window.duration_ns)
    rows = _mean_ledger(analyses, [gpu.ledger for gpu in gpus], window.duration_ns)
    traces = _unique(analysis.trace for analysis in analyses)
    columns = ["flops", "part", "exclusive_ns", "ideal_ns", "recompute"]
    tensor = pl.concat([analysis.account.tensor.select(columns) for analysis in analyses])
    return Report(
        tool=Tool(version=version("trace-doctor")),
        sources=[_source(trace) for trace in traces],
        device=_device(analyses),
        workload=_workload(analyses, rows, window, options, tensor),
        window=window,
        metrics=_mean_metrics(gpus, rows, window),
        partition=merged_partition,
        ledger=rows,
        gpus=gpus,
        collectives=_collectives(analyses),
        counts=_sum_counts([gpu.counts for gpu in gpus]),
        coverage=_coverage(analyses, traces),
        warnings=_warnings(analyses, traces, rows, window, options),
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
        best_matmul_flops=device.best_matmul_flops,
        basis=device.basis,
    )


def _gpu(analysis: Analysis, options: Options) -> Gpu:
    meta, spans = analysis.trace.meta, _spans(analysis)
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
        step_time_ns=step_time(_used_durations(analysis)),
        metrics=_metrics(analysis, rows, options),
    )


def _spans(analysis: Analysis) -> pl.DataFrame:
    return analysis.window.spans.filter(pl.col("device") == analysis.number)


def _used_durations(analysis: Analysis) -> pl.Series:
    spans = _spans(analysis).filter(pl.col("number").is_not_null())
    return spans["end_ns"] - spans["start_ns"]


def step_time(durations_ns: pl.Series) -> StepTime:
    """Statistics of the used steps; null without steps."""
    if durations_ns.is_empty():
        return StepTime()
    mean, median, p90 = durations_ns.mean(), durations_ns.median(), durations_ns.quantile(0.9, "linear")
    return StepTime(mean=mean, median=median, min=durations_ns.min(), max=durations_ns.max(), p90=p90)  # type: ignore[arg-type]


def _counts(analysis: Analysis) -> Counts:
    pieces = analysis.account.timeline.pieces.select("activity", "kind", "call", "process").unique("activity")
    calls, spans = analysis.trace.calls, _spans(analysis)
    kernels = pieces.filter(pl.col("kind").is_in(["compute", "communication"]))
    launched = calls[kernels["call"].drop_nulls().unique()]
    process = pieces["process"].drop_nulls().unique()
    threads = [n for n, thread in enumerate(analysis.trace.meta.threads) if thread.process in process]
    during = pl.lit(value=False)
    for start_ns, end_ns in spans.select("start_ns", "end_ns").iter_rows():
        during = during | ((pl.col("start_ns") >= start_ns) & (pl.col("start_ns") < end_ns))
    kinds = dict(calls.filter(pl.col("thread").is_in(threads) & during).group_by("kind").len().iter_rows())
    return Counts(
        kernels=len(kernels),
        communication_kernels=len(kernels.filter(pl.col("kind") == "communication")),
        copies=len(pieces.filter(pl.col("kind").is_in(["copy", "set"]))),
        launches=len(launched),
        graph_launches=len(launched.filter(pl.col("kind") == "graph_launch")),
        synchronisations=kinds.get("synchronisation", 0),
        mallocs=kinds.get("malloc", 0),
        frees=kinds.get("free", 0),
    )


def _sum_counts(counts: Sequence[Counts]) -> Counts:
    return Counts(**{name: sum(getattr(c, name) for c in counts) for name in Counts.__struct_fields__})


# ---- metrics


class Covered(NamedTuple):
    """Exclusive time of the tensor kernels with FLOPs, of all of them, and what the covered ones ideally take, in ns."""

    covered_ns: float
    tensor_ns: float
    ideal_ns: float


def _covered(tensor: pl.DataFrame) -> Covered:
    known = tensor.filter(pl.col("flops").is_not_null())
    held, ideal = known["exclusive_ns"].sum(), known["ideal_ns"].fill_null(0).sum()
    return Covered(float(held), float(tensor["exclusive_ns"].sum()), float(ideal))


def covered_share(tensor: pl.DataFrame) -> float | None:
    """Share of the tensor kernels' time whose FLOPs are known; null without tensor kernels."""
    covered = _covered(tensor)
    return min(covered.covered_ns / covered.tensor_ns, 1.0) if covered.tensor_ns > 0 else None


def _row_ns(rows: Sequence[LedgerRow], row: charges.Row) -> int:
    return sum(r.time_ns for r in rows if (r.wall, r.cause) == (row.wall, row.cause))


def _metrics(analysis: Analysis, rows: Sequence[LedgerRow], options: Options) -> Metrics:
    window_ns, held = analysis.account.window_ns, analysis.account.timeline.held_ns
    parts = partition(analysis.account.timeline)
    low, high, is_proven = _mfu_bounds(analysis, rows, options)
    mfu = low if is_proven else None
    recompute = _row_ns(rows, charges.RECOMPUTE) / window_ns
    communication = parts.communication_ns
    durations = _used_durations(analysis)
    tokens = options.tokens_per_step
    step_ns = durations.mean()
    return Metrics(
        mfu=mfu,
        mfu_low=low,
        mfu_high=high,
        hfu=None if mfu is None else mfu + recompute,
        mfu_by_peak={} if mfu is None else _by_peak(analysis, rows),
        achieved_flops=None if mfu is None or analysis.peak_flops is None else mfu * analysis.peak_flops,
        tokens_per_s=1e9 * tokens / step_ns if tokens and isinstance(step_ns, float) and step_ns > 0 else None,
        gpu_utilisation=1 - held[IDLE] / window_ns,
        tensor_share=held[TENSOR] / window_ns,
        communication_overlap=parts.overlapped_communication_ns / communication if communication else None,
    )


def _mfu_bounds(
    analysis: Analysis, rows: Sequence[LedgerRow], options: Options
) -> tuple[float | None, float | None, bool]:
    """What is proven, what may be on top, and whether the first may be called MFU (ATTRIBUTION section 6)."""
    if analysis.peak_flops is None:
        return None, None, False
    window_ns = analysis.account.window_ns
    low = _row_ns(rows, charges.MFU) / window_ns
    if job_flops(options) is not None:
        return low, low, True
    covered = _covered(analysis.account.tensor)
    missing_ns = covered.tensor_ns - covered.covered_ns
    if covered.tensor_ns <= 0 or covered.covered_ns < HALF_COVERED * covered.tensor_ns:
        known = covered.covered_ns > 0
        bound = (low if known else 0.0) + missing_ns / window_ns
        return low if known else None, min(bound, 1.0) if covered.tensor_ns > 0 else None, False
    efficiency = low * window_ns / covered.covered_ns
    return low, low + efficiency * missing_ns / window_ns, True


def _by_peak(analysis: Analysis, rows: Sequence[LedgerRow]) -> dict[str, float]:
    """MFU against the peak of a faster dtype that did more than a tenth of the tensor FLOPs."""
    if analysis.peak_flops is None:
        return {}
    work = analysis.account.tensor.filter(pl.col("flops").is_not_null() & ~pl.col("recompute"))
    by_dtype = work.group_by("ran_in").agg(flops=(pl.col("flops") * pl.col("part")).sum())
    total = float(by_dtype["flops"].sum())
    mfu_flops = _row_ns(rows, charges.MFU) * analysis.peak_flops / analysis.account.window_ns
    return {
        dtype: mfu_flops / peak
        for dtype, flops in by_dtype.sort("ran_in").iter_rows()
        if dtype
        and (peak := analysis.device.peaks.get(dtype, 0)) > analysis.peak_flops
        and flops > FASTER_DTYPE_SHARE * total
    }


def _mean_metrics(gpus: Sequence[Gpu], rows: Sequence[LedgerRow], window: WindowRow) -> Metrics:
    """Means over GPUs, weighted by their windows, so that MFU is the MFU row over the window."""
    if len(gpus) == 1:
        return gpus[0].metrics
    weights = [gpu.window.duration_ns for gpu in gpus]

    def mean(name: str) -> float | None:
        values = [getattr(gpu.metrics, name) for gpu in gpus]
        known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
        return sum(v * w for v, w in known) / sum(w for _, w in known) if len(known) == len(values) else None

    fields = [name for name in Metrics.__struct_fields__ if name != "mfu_by_peak"]
    common = set.intersection(*(set(gpu.metrics.mfu_by_peak) for gpu in gpus))
    by_peak = {
        d: sum(g.metrics.mfu_by_peak[d] * w for g, w in zip(gpus, weights, strict=True)) / sum(weights)
        for d in sorted(common)
    }
    return Metrics(mfu_by_peak=by_peak, **{name: mean(name) for name in fields})


# ---- means over GPUs


def _window(analyses: Sequence[Analysis]) -> WindowRow:
    steps = pl.concat([a.window.steps.filter(pl.col("device") == a.number) for a in analyses])
    merged = (
        steps.group_by("number", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            duration_ns=(pl.col("end_ns") - pl.col("start_ns")).mean().round().cast(pl.Int64),
            used=pl.col("used").any(),
            why_not=pl.col("why_not").first(),
        )
        .sort("start_ns", "number")
    )
    listed = [
        Step(number=number, start_ns=start, duration_ns=duration, used=used, why_not=None if used else why)
        for number, start, duration, used, why in merged.iter_rows()
    ]
    durations = pl.Series([step.duration_ns for step in listed if step.used], dtype=pl.Int64)
    starts: list[int] = [start for a in analyses for start in _spans(a)["start_ns"].to_list()]
    return WindowRow(
        rule=analyses[0].window.rule,
        start_ns=min(starts, default=0),
        duration_ns=round(sum(a.account.window_ns for a in analyses) / len(analyses)),
        step_time_ns=step_time(durations),
        steps=listed,
    )


def _mean_partition(parts: Sequence[Partition], window_ns: int) -> Partition:
    if len(parts) == 1:
        return parts[0]

    def mean(name: str) -> float:
        return float(sum(getattr(part, name) for part in parts)) / len(parts)

    names = ["compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns"]
    shares = share_out(pl.DataFrame({"time_ns": [mean(name) for name in names]}), window_ns)
    rounded = dict(zip(names, shares, strict=True))
    overlapped = round(mean("overlapped_communication_ns"))
    return Partition(
        **rounded,
        overlapped_communication_ns=overlapped,
        communication_ns=rounded["exposed_communication_ns"] + overlapped,
    )


def _mean_ledger(analyses: Sequence[Analysis], ledgers: Sequence[list[LedgerRow]], window_ns: int) -> list[LedgerRow]:
    if len(ledgers) == 1:
        return ledgers[0]
    rows = pl.DataFrame(
        [(row.wall, row.cause, row.basis, row.time_ns) for rows in ledgers for row in rows],
        schema={"wall": pl.String, "cause": pl.String, "basis": pl.String, "time_ns": pl.Int64},
        orient="row",
    )
    means = summed(rows, "wall", "cause").with_columns(pl.col("time_ns") / len(ledgers)).sort("wall", "cause")
    shares = means.with_columns(time_ns=share_out(means.select("time_ns"), window_ns))
    top = tops(pl.concat([analysis.account.charges for analysis in analyses]))
    return rows_of(shares, window_ns, {key: names[:TOP_NAMES] for key, names in top.items()})


# ---- what it rests on


def _workload(
    analyses: Sequence[Analysis], rows: Sequence[LedgerRow], window: WindowRow, options: Options, tensor: pl.DataFrame
) -> Workload:
    steps = sum(step.used for step in window.steps) or 1
    share = covered_share(tensor)
    if (of_job := job_flops(options)) is not None:
        given = options.flops_per_step is not None
        gpus = world_size(analyses[0].trace, options)
        formula = "as given with --flops-per-step" if given else "6 x parameters x tokens (no attention term)"
        return Workload(
            flops_basis="model",
            formula=f"{formula}, divided by {gpus} GPU{'s' if gpus > 1 else ''}",
            model_flops_per_step=of_job / gpus,
            tokens_per_step=options.tokens_per_step,
            covered_share=share,
        )
    if not share:
        return Workload(tokens_per_step=options.tokens_per_step, covered_share=share)
    flops = counted_flops(tensor) / len(analyses) / steps
    return Workload(
        flops_basis="shapes",
        formula="sum over the tensor ops by their recorded shapes; causal attention counts half, its backward twice the forward",
        model_flops_per_step=flops,
        tokens_per_step=options.tokens_per_step,
        covered_share=share,
    )


def _collectives(analyses: Sequence[Analysis]) -> list[Collective]:
    pieces = pl.concat(
        [a.account.timeline.pieces.filter(pl.col("class") == COMMUNICATION) for a in analyses], how="diagonal_relaxed"
    )
    rate = 1e9 / pl.col("duration_ns").clip(lower_bound=1)
    grouped = (
        pieces.group_by("operation", "group", "group_size", "message_bytes")
        .agg(
            count=pl.col("activity").n_unique(),
            median=pl.col("duration_ns").median(),
            p95=pl.col("duration_ns").quantile(0.95, "linear"),
            exposed_ns=pl.col("exclusive_ns").sum().round().cast(pl.Int64),
            bus=(pl.col("wire_bytes") * rate).median(),
            algorithm=(pl.col("message_bytes") * rate).median(),
            expected=pl.col("expected_bandwidth").first(),
        )
        .sort(["exposed_ns", "operation", "group", "message_bytes"], descending=[True, False, False, False])
        .head(MANY_COLLECTIVES)
    )
    return [
        Collective(
            name=row["operation"] or "collective of unknown kind",
            group=row["group"],
            group_size=row["group_size"],
            count=row["count"],
            message_bytes=None if row["message_bytes"] is None else int(row["message_bytes"]),
            duration_ns=Spread(median=row["median"], p95=row["p95"]),
            exposed_ns=row["exposed_ns"],
            bus_bandwidth=row["bus"],
            algorithm_bandwidth=row["algorithm"],
            expected_bus_bandwidth=row["expected"],
        )
        for row in grouped.iter_rows(named=True)
    ]


def _coverage(analyses: Sequence[Analysis], traces: Sequence[Trace]) -> Coverage:
    columns = ["class", "kind", "call", "exclusive_ns", "flops", "bytes_moved", "has_shapes"]
    pieces = pl.concat([a.account.timeline.pieces.select(columns) for a in analyses])
    kernels = pieces.filter(pl.col("class") <= COMPUTE)
    tensor = kernels.filter(pl.col("class") == TENSOR)
    known = pl.col("flops").is_not_null() | pl.col("bytes_moved").is_not_null()
    linked = pieces.filter(pl.col("kind").is_in(["compute", "communication"]))["call"]
    order: tuple[Trust, ...] = ("good", "partial", "poor")
    trust = order[max(order.index(a.window.trust) for a in analyses)]
    return Coverage(
        kernels_linked_share=linked.is_not_null().mean(),  # type: ignore[arg-type]
        shapes_share=_share_of_time(tensor, pl.col("has_shapes")),
        modelled_share=_share_of_time(kernels, known),
        tables_missing=sorted({table for trace in traces for table in trace.meta.tables_missing}),
        abstained=_abstained(analyses),
        trust=trust,
        why=list(dict.fromkeys(why for a in analyses for why in a.window.why)),
    )


def _share_of_time(pieces: pl.DataFrame, is_so: pl.Expr) -> float | None:
    total, so = float(pieces["exclusive_ns"].sum()), float(pieces.filter(is_so)["exclusive_ns"].sum())
    return so / total if total > 0 else None


def _abstained(analyses: Sequence[Analysis]) -> list[Abstained]:
    skipped = [
        Abstained(
            code="dependency",
            why="waits of one stream for another are not recorded, so a kernel that waited for a collective is 'queued but not started'",
        )
    ]
    if any(a.account.timeline.communication_ns for a in analyses):
        skipped.append(
            Abstained(
                code="straggler",
                why="ranks are not compared yet: waiting for a slow rank and a slow link look alike from one",
            )
        )
    return skipped


def _warnings(
    analyses: Sequence[Analysis],
    traces: Sequence[Trace],
    rows: Sequence[LedgerRow],
    window: WindowRow,
    options: Options,
) -> list[Message]:
    found = [Message(code=w.code, message=w.message) for trace in traces for w in trace.meta.warnings]
    found += [Message(code=w.code, message=w.message) for a in analyses for w in a.window.warnings]
    for analysis in analyses:
        found += _device_warnings(analysis)
        found += _beaten_peaks(analysis)
    found += _model_warnings(analyses, rows, window, options)
    return list(dict.fromkeys(found))


def _device_warnings(analysis: Analysis) -> list[Message]:
    if analysis.peak_flops is not None:
        return []
    return [Message(code="unknown-peak", message=f"no MFU: the peak of this GPU is not known. {analysis.device.basis}")]


def _beaten_peaks(analysis: Analysis) -> list[Message]:
    """A kernel that beats its peak: a wrong peak or a wrong count; Winograd and FFT convolutions may do so honestly."""
    sums = (
        analysis.account.tensor.lazy()
        .filter(pl.col("dtype_ns").is_not_null() & (pl.col("duration_ns") > 0))
        .group_by("name", "ran_in")
        .agg(pl.col("dtype_ns").sum(), took_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .with_columns(ratio=pl.col("dtype_ns") / pl.col("took_ns"), name=pl.col("name").cast(pl.String))
        .filter(pl.col("ratio") > BEATS_PEAK)
        .sort(["dtype_ns", "name"], descending=[True, False])
        .collect()
    )
    honest = pl.col("name").str.contains("(?i)winograd|fft")
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


def _model_warnings(
    analyses: Sequence[Analysis], rows: Sequence[LedgerRow], window: WindowRow, options: Options
) -> list[Message]:
    found = []
    mfu = _row_ns(rows, charges.MFU) / window.duration_ns if window.duration_ns else 0
    if mfu > 1:
        found.append(
            Message(code="mfu-above-one", message=f"MFU is {mfu:.3g}: the peak, the device or the FLOPs are wrong")
        )
    error, busy = (
        _row_ns(rows, charges.MODEL_ERROR),
        sum(sum(a.account.timeline.held_ns[:2]) for a in analyses) / len(analyses),
    )
    if busy and abs(error) > MODEL_ERROR_SHARE * busy:
        found.append(
            Message(
                code="model-error",
                message=f"FLOPs and peak miss the kernels' time by {abs(error) / busy:.1%}: one of them is wrong",
            )
        )
    for analysis in analyses:
        given = model_flops(analysis.trace, options, steps=len(_spans(analysis)))
        by_shapes = counted_flops(analysis.account.tensor)
        if given is not None and by_shapes > given * (1 + 1e-6):
            text = f"the shapes hold {by_shapes:.4g} FLOPs, the model count {given:.4g}: they contradict each other"
            found.append(Message(code="flops-contradiction", message=text))
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
