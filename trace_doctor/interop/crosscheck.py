"""HTA's temporal breakdown, overlap and idle time beside ours, with the reason of each difference.

HTA is asked again and again with one of its habits taken away at a time, until its numbers are ours. So each reason carries
exactly what it changes, and whatever no reason explains would be left as "unexplained".
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from trace_doctor import pipeline
from trace_doctor.classifiers.ledger import Analysis, partition
from trace_doctor.classifiers.timeline import sweep
from trace_doctor.interop.extras import require
from trace_doctor.interop.holistic import analyses, analysis, gpus
from trace_doctor.options import Options
from trace_doctor.report import Partition
from trace_doctor.trace import Trace
from trace_doctor.work import kernels

if TYPE_CHECKING:
    from hta.trace_analysis import TraceAnalysis

Numbers = dict[str, float | None]

QUANTITIES = ("window_ns", "compute_ns", "non_compute_ns", "idle_ns", "stream_idle_ns", "overlap_percent")
"""What is compared. `non_compute_ns`: communication and copies that no compute covers. `stream_idle_ns`: HTA's idle
breakdown, summed over streams and causes, beside the time in which nothing ran. `overlap_percent`: share of the communication
that compute covers, to the two decimals that HTA gives."""
UNEXPLAINED = "unexplained"
SCHEMA = {
    "gpu": pl.String,
    "quantity": pl.String,
    "hta": pl.Float64,
    "ours": pl.Float64,
    "reason": pl.String,
    "change": pl.Float64,
}
_READABLE = (".json", ".gz")
_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


class _Rung(NamedTuple):
    """HTA's numbers, or ours, after one more habit of HTA's is gone, and which."""

    reason: str
    numbers: Numbers


def crosscheck_hta(trace: Trace, options: Options | None = None, *, with_their_loader: bool = True) -> pl.DataFrame:
    """HTA's numbers for each GPU beside ours: gpu, quantity, hta, ours, reason, change, a row a reason.

    `change` is what the reason adds on the way from HTA's number to ours, so that the changes of a quantity sum to `ours - hta`;
    where both agree, one row has no reason. Null: HTA stopped with an error, or had nothing to divide by. Their loader reads the
    file anew and takes five times as long as ours and more; without it HTA works on our frames, rounded as its loader rounds them.
    """
    require("hta.trace_analysis", extra="hta")
    ours = {analysed.number: analysed for analysed in pipeline.examine(trace, options or Options())}
    with _quiet():
        theirs = list(_their_rungs(trace)) if with_their_loader and _is_readable(trace) else []
        rows = [
            row
            for rank, (_, number) in gpus([trace]).items()
            if number in ours
            for row in _compared(
                trace.meta.devices[number].label, [*theirs, *_ladder(rank, trace, number), *_our_rungs(ours[number])]
            )
        ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _compared(
    gpu: str, rungs: list[_Rung]
) -> Iterator[tuple[str, str, float | None, float | None, str | None, float | None]]:
    for quantity in QUANTITIES:
        values = [rung.numbers[quantity] for rung in rungs]
        hta, ours = values[0], values[-1]
        agrees: list[tuple[str | None, float | None]] = [(None, 0.0)]
        for reason, change in list(_changes(quantity, rungs)) or agrees:
            yield gpu, quantity, hta, ours, reason, change


def _changes(quantity: str, rungs: list[_Rung]) -> Iterator[tuple[str | None, float | None]]:
    """Each reason that changes the quantity, and by how much; null for the one after which there is a number at all."""
    before: float | None = None
    for place, rung in enumerate(rungs):
        value = rung.numbers[quantity]
        if value is None:
            continue
        if before is None and place:
            yield f"HTA gives no number before: {rung.reason}", None
        elif before is not None and value != before:
            yield rung.reason, round(value - before, 2)
        before = value


# ---- HTA with its own loader


def _is_readable(trace: Trace) -> bool:
    return Path(trace.meta.path).is_file() and trace.meta.path.endswith(_READABLE)


def _their_rungs(trace: Trace) -> Iterator[_Rung]:
    """HTA as its users run it, with the last step, and without what its loader takes for GPU work on a stream."""
    holder = _guarded(lambda: _parsed(trace.meta.path))
    if holder is None:
        yield _Rung("HTA with its own loader", dict.fromkeys(QUANTITIES))
        return
    yield _Rung("HTA with its own loader", _measure(_filtered(holder, with_last_step=False), 0, ns=1000))
    whole = _filtered(holder, with_last_step=True)
    yield _Rung("the last step: HTA leaves out what is launched after it began", _measure(whole, 0, ns=1000))
    frame, known = whole.t.traces[0], whole.t.symbol_table.get_sym_id_map()
    work = frame["cat"].isin([known.get(name, -1) for name in _EVENTS])
    whole.t.traces[0] = frame[frame["stream"].lt(0) | work]
    yield _Rung("marks of waiting on a stream (cuda_sync) are no GPU work", _measure(whole, 0, ns=1000))


def _parsed(path: str) -> Any:
    """HTA's frames of a file, neither aligned nor filtered."""
    holder = require("hta.common.trace", extra="hta").Trace(trace_files={0: str(Path(path).resolve())})
    holder.parse_traces(use_multiprocessing=False)
    return holder


def _filtered(holder: Any, *, with_last_step: bool) -> TraceAnalysis:
    mine = copy(holder)
    mine.traces = {rank: frame.copy() for rank, frame in holder.traces.items()}
    mine.align_and_filter_trace(with_last_step)
    mine.traces = {rank: frame.set_index("index", drop=False).rename_axis(None) for rank, frame in mine.traces.items()}
    return analyses(mine)


# ---- HTA on our frames


def _ladder(rank: int, trace: Trace, number: int) -> Iterator[_Rung]:
    """Habits of HTA's loader taken away one by one."""
    mine, several = {rank: (trace, number)}, trace.activities["device"].n_unique() > 1
    read = (
        "each GPU by itself: HTA takes all GPUs of a file for one" if several else "the file as trace-doctor reads it"
    )
    yield _Rung(read, _measure(analysis(mine, ticks="hta", linked_only=True), rank, ns=1000))
    exact = "exact times: HTA rounds starts up and ends down to whole microseconds"
    yield _Rung(exact, _measure(analysis(mine, ticks="ns", linked_only=True), rank, ns=1))
    whole = _measure(analysis(mine, ticks="ns"), rank, ns=1)
    yield _Rung("kernels without a launch record, which HTA leaves out", whole)
    per_stream = "idle is when no stream is busy: HTA sums the gaps between the kernels of each stream"
    yield _Rung(per_stream, whole | {"stream_idle_ns": whole["idle_ns"]})


def _measure(hta: TraceAnalysis, rank: int, *, ns: int) -> Numbers:
    """HTA's answers in nanoseconds and per cent. `ns`: nanoseconds of a tick."""
    temporal = _guarded(lambda: hta.get_temporal_breakdown(visualize=False).iloc[0])
    streams = _guarded(lambda: hta.get_idle_time_breakdown(ranks=[rank], visualize=False)[0]["idle_time"].sum())
    overlap = _guarded(lambda: hta.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0])
    ticks = {
        "window_ns": None if temporal is None else temporal["kernel_time(us)"],
        "compute_ns": None if temporal is None else temporal["compute_time(us)"],
        "non_compute_ns": None if temporal is None else temporal["non_compute_time(us)"],
        "idle_ns": None if temporal is None else temporal["idle_time(us)"],
        "stream_idle_ns": streams,
    }
    numbers: Numbers = {name: None if value is None else float(value) * ns for name, value in ticks.items()}
    return numbers | {"overlap_percent": None if overlap is None or overlap != overlap else float(overlap)}


def _guarded(ask: Callable[[], Any]) -> Any:
    """The answer; null where HTA stops on this trace: it asserts and indexes where a trace may be empty or rounded away."""
    try:
        return ask()
    except _FAILURES:
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """HTA logs its progress as warnings, and pandas warns of what HTA calls."""
    log = logging.getLogger("hta")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", RuntimeWarning)  # 0 / 0 where nothing communicates
            yield
    finally:
        log.setLevel(before)


# ---- our own account


def _our_rungs(analysed: Analysis) -> Iterator[_Rung]:
    """Our sweep over what HTA's window holds, then over our window."""
    activities = pipeline.describe(kernels.classify(analysed.trace)).filter(pl.col("device") == analysed.number)
    hull = activities.select(
        start_ns=pl.col("start_ns").min(),
        end_ns=(pl.col("start_ns") + pl.col("duration_ns")).max(),
        number=pl.lit(None, pl.Int64),
    )
    yield _Rung(UNEXPLAINED, _numbers(partition(sweep(_named_by_hta(activities), hull))))
    yield _Rung(
        "communication is known by its op and by more names: HTA knows nccl...Kernel",
        _numbers(partition(sweep(activities, hull))),
    )
    yield _Rung(
        "the window of the steps used: HTA's runs from its first kernel to its last",
        _numbers(partition(analysed.account.timeline)),
    )


def _named_by_hta(activities: pl.DataFrame) -> pl.DataFrame:
    """The activities with the kinds that HTA gives their names."""
    name_kind = require("hta.utils.utils", extra="hta").get_kernel_type
    ours = {"COMPUTATION": "compute", "COMMUNICATION": "communication"}
    kinds = {name: ours.get(name_kind(name), "copy") for name in activities["name"].unique().cast(pl.String)}
    return activities.with_columns(
        kind=pl.col("name").cast(pl.String).replace_strict(kinds), tensor=pl.lit(value=False)
    )


def _numbers(parts: Partition) -> Numbers:
    exposed = parts.exposed_communication_ns + parts.exposed_copy_ns
    overlapped, whole = parts.overlapped_communication_ns, parts.communication_ns
    return {
        "window_ns": parts.compute_ns + exposed + parts.idle_ns,
        "compute_ns": parts.compute_ns,
        "non_compute_ns": exposed,
        "idle_ns": parts.idle_ns,
        "stream_idle_ns": parts.idle_ns,
        "overlap_percent": round(100 * overlapped / whole, 2) if whole else None,
    }
