"""What a report for people says, and in which order: the terminal and Markdown draw the same `View`.

1. the verdict: MFU, where that stands, GPU utilisation and why the two differ
2. the waterfall from the peak down to MFU, a row a wall
3. findings: a card for each that is worth fixing, a line for the others
4. the numbers beside MFU with their basis, the steps, and a row a GPU where there are several
5. the ledger: its largest causes
6. what was left out, and what the numbers rest on
"""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from trace_doctor.report import WALLS, Gpu, LedgerRow, Report, Wall
from trace_doctor.reporter import text, verdict
from trace_doctor.reporter.cards import Findings, Remark, findings
from trace_doctor.reporter.numbers import Number, numbers, ranks, steps
from trace_doctor.reporter.tables import Table, kernels
from trace_doctor.reporter.text import Column

SMALLEST_POINTS = 1.0
SMALLEST_SHARE = 0.005
"""Of a contributor that is not the first."""
MOST_CAUSES = 8
MOST_TOPS = 3
MOST_GPUS = 16
MOST_NOTES = 20
LONGEST_NOTE = 400
LONGEST_TITLE = 80


class Bar(NamedTuple):
    """A row of the waterfall: what the wall takes, and the points of the peak that stand below and above it."""

    wall: Wall | None
    label: str
    points: float
    time_ns: float
    low: float
    high: float


class Contributor(NamedTuple):
    """A kernel, op or host range that holds part of a cause."""

    name: str
    op: str | None
    times: str
    """How often a step, as a mean."""
    points: float
    time_ns: float


class Cause(NamedTuple):
    """A row of the ledger, for people."""

    wall: Wall
    title: str
    basis: str
    meaning: str
    points: float
    time_ns: float
    top: tuple[Contributor, ...]


class View(NamedTuple):
    """All that a report for people shows, in order."""

    subject: str
    headline: str
    verdict: tuple[str, ...]
    next_step: str | None
    waterfall: str
    """Title of the bars."""
    per: str
    """What times are given for: "step", or "window" where there are no steps."""
    column: Column
    bars: tuple[Bar, ...]
    findings: Findings
    lists: tuple[tuple[str, tuple[Remark, ...]], ...]
    """Findings in one line each, with what is said above them."""
    numbers: tuple[Number, ...]
    steps: tuple[str, ...]
    gpu_header: tuple[str, ...]
    gpus: tuple[tuple[str, ...], ...]
    more_gpus: str | None
    kernels: Table
    causes: tuple[Cause, ...]
    more_causes: str | None
    notes: tuple[str, ...]


def view(report: Report) -> View:
    """The report in words, every string of the trace made harmless."""
    report = text.cleaned(report)
    per_ns, per = step_ns(report), "step" if report.window.step_time_ns.mean else "window"
    shown, rest = _causes(report)
    found = findings(report)
    return View(
        subject=_subject(report),
        headline=verdict.headline(report),
        verdict=verdict.sentences(report),
        next_step=verdict.next_step(report),
        waterfall="Where the time goes" + (", from the peak down to MFU" if report.metrics.mfu is not None else ""),
        per=per,
        column=text.column(per_ns),
        bars=_bars(report),
        findings=found,
        lists=_lists(found),
        numbers=numbers(report),
        steps=(*steps(report), *ranks(report)),
        gpu_header=(
            "GPU",
            per,
            "MFU",
            "busy",
            "exposed comm.",
            "idle",
        ),
        gpus=tuple(_gpu(gpu) for gpu in report.gpus[:MOST_GPUS]) if len(report.gpus) > 1 else (),
        more_gpus=_folded(report.gpus[MOST_GPUS:]),
        kernels=kernels(report, text.column(per_ns), per, report.window.duration_ns / per_ns if per_ns else 1.0),
        causes=shown,
        more_causes=rest,
        notes=_notes(report),
    )


def _lists(found: Findings) -> tuple[tuple[str, tuple[Remark, ...]], ...]:
    remarks = len(found.remarks) + found.unlisted
    lists = [
        (f"{text.plural(len(found.more), 'more finding')}, smaller than these:", found.more),
        (f"{text.plural(remarks, 'remark')}, too small to act on or nothing to fix:", found.remarks),
    ]
    return tuple((title, rows) for title, rows in lists if rows)


def step_ns(report: Report) -> float:
    """The time that all rows are given for: the mean step, or the window where there are no steps."""
    return report.window.step_time_ns.mean or float(report.window.duration_ns)


def _subject(report: Report) -> str:
    names = [PurePath(source.path.replace("\\", "/")).name for source in report.sources]
    files = f"{names[0]} … {names[-1]} ({len(names)} files)" if len(names) > 1 else "".join(names)
    gpus = f"{report.device.count} × {report.device.name or 'unknown GPU'}" if report.device.count else ""
    return text.clip(" · ".join(part for part in (files, gpus) if part), 160)


def _bars(report: Report) -> tuple[Bar, ...]:
    """From the peak down, a row a wall in the fixed order, MFU last; tensor work of unknown FLOPs apart without MFU."""
    unknown = report.metrics.mfu is None
    per_ns = step_ns(report)
    sums = dict.fromkeys(WALLS, 0.0)
    apart = 0.0
    for row in report.ledger:
        if unknown and row.cause == text.WITHOUT_FLOPS:
            apart += row.share
        else:
            sums[row.wall] += row.share
    steps: list[tuple[Wall, str, float]] = [
        (wall, text.WALLS[wall].label, sums[wall])
        for wall in WALLS
        if wall != "mfu" and (wall != "recompute" or sums[wall])
    ]
    if apart:
        steps.append(("unattributed", "tensor kernels", apart))
    if not unknown or sums["mfu"]:
        steps.append(("mfu", "MFU" if not unknown else "proven FLOPs", sums["mfu"]))
    bars, top = [Bar(None, "peak", 100.0, per_ns, 0.0, 100.0)], 100.0
    for wall, label, share in steps:
        low = top - 100 * share
        bars.append(Bar(wall, label, 100 * share, share * per_ns, max(low, 0.0), top))
        top = low
    return tuple(bars)


def _causes(report: Report) -> tuple[tuple[Cause, ...], str | None]:
    ranked = sorted((row for row in report.ledger if row.wall != "mfu"), key=lambda row: -abs(row.mfu_points))
    large = [row for row in ranked if abs(row.mfu_points) >= SMALLEST_POINTS][:MOST_CAUSES]
    small = ranked[len(large) :]
    rest = (
        f"{text.plural(len(small), 'more cause')}, together {text.points(sum(row.mfu_points for row in small))} points"
    )
    return tuple(_cause(report, row) for row in large), rest if small else None


def _cause(report: Report, row: LedgerRow) -> Cause:
    used = sum(step.used for step in report.window.steps) or 1
    per_window = report.window.duration_ns or 1
    ranked = sorted(row.top, key=lambda top: -abs(top.time_ns))[:MOST_TOPS]
    return Cause(
        wall=row.wall,
        title=text.clip(text.cause(row.wall, row.cause), LONGEST_TITLE),
        basis=row.basis,
        meaning=text.MEANINGS.get(row.cause, ""),
        points=row.mfu_points,
        time_ns=row.share * step_ns(report),
        top=tuple(
            Contributor(
                name=text.kernel(top.name),
                # a collective's kernel says more than the op that recorded it
                op=top.op if top.op != top.name and row.wall != "communication" else None,
                times=text.count(top.count / used),
                points=100 * top.time_ns / per_window,
                time_ns=top.time_ns / per_window * step_ns(report),
            )
            for place, top in enumerate(ranked)
            if abs(top.time_ns) / per_window >= (SMALLEST_SHARE if place else 0)
        ),
    )


def _more(count: int, noun: str) -> str | None:
    return f"{text.plural(count, f'more {noun}')}" if count > 0 else None


def _gpu(gpu: Gpu) -> tuple[str, ...]:
    window = gpu.window.duration_ns or 1
    where = f"rank {gpu.rank}" if gpu.rank is not None else PurePath(gpu.source).name
    return (
        text.clip(f"{where}, GPU {gpu.device}" if gpu.device else where, 32),
        text.duration(gpu.step_time_ns.median or gpu.window.duration_ns),
        text.percent(gpu.metrics.mfu),
        text.percent(gpu.metrics.gpu_utilisation),
        text.percent(gpu.partition.exposed_communication_ns / window),
        text.percent(gpu.partition.idle_ns / window),
    )


def _folded(gpus: list[Gpu]) -> str | None:
    if not gpus:
        return None
    known = [gpu.metrics.mfu for gpu in gpus if gpu.metrics.mfu is not None]
    times = [gpu.step_time_ns.median or gpu.window.duration_ns for gpu in gpus]
    span = f", {text.duration(min(times))} to {text.duration(max(times))}"
    mfu = f", MFU {text.percent(min(known))} to {text.percent(max(known))}" if known else ""
    return f"{text.plural(len(gpus), 'more GPU')}{span}{mfu}"


def _model_flops(report: Report) -> list[str]:
    """The formula of a model's FLOPs, and what the shapes of the trace hold beside them."""
    work = report.workload
    if work.flops_basis != "model" or not work.model_flops_per_step:
        return []
    notes = [f"FLOPs of a step and GPU: {text.rate(work.model_flops_per_step, 'FLOP')}, {work.formula}"]
    if work.shape_flops_per_step and work.shape_covered_share:
        ratio = work.shape_flops_per_step / work.model_flops_per_step
        notes.append(
            f"Cross-check: the shapes of the trace hold {text.rate(work.shape_flops_per_step, 'FLOP')}, {text.percent(ratio)} of the"
            f" model's, and cover {text.percent(work.shape_covered_share)} of the time in tensor kernels"
        )
    return notes


def _notes(report: Report) -> tuple[str, ...]:
    """What the numbers rest on: trust first, then coverage, then each warning."""
    coverage = report.coverage
    notes = []
    if coverage.trust != "good":
        why = f": {'; '.join(coverage.why)}" if coverage.why else ""
        notes.append(f"Idle time can't be believed in this trace (trust: {coverage.trust}){why}")
    known = [
        f"{what} known for {text.percent(share)} of the {whole}"
        for share, what, whole in (
            (report.workload.covered_share, "FLOPs", "time in tensor kernels"),
            (coverage.modelled_share, "FLOPs or bytes", "time in compute kernels"),
            (coverage.kernels_linked_share, "launch", "kernels"),
        )
        if share is not None
    ]
    notes += [", ".join(known)] if known else []
    notes += _model_flops(report)
    if coverage.tables_missing:
        notes.append(f"Not recorded in this trace: {', '.join(coverage.tables_missing)}")
    if report.device.basis and report.device.peak_dtype:
        notes.append(f"GPU: {report.device.basis}")
    skipped: dict[str, list[str]] = {}
    for one in coverage.abstained:
        skipped.setdefault(one.why, []).append(one.code)
    judged = [f"Not judged, because {why}: {', '.join(codes)}" for why, codes in skipped.items()]
    notes += judged[:MOST_NOTES]
    told = {*coverage.why, *(message.message for message in report.warnings if message.code == "unknown-peak")}
    warnings = [message.message for message in report.warnings if message.message not in told]
    notes += [f"Warning: {warning}" for warning in warnings[:MOST_NOTES]]
    notes += [f"{more}: see the JSON report"] if (more := _more(len(warnings) - MOST_NOTES, "warning")) else []
    return tuple(text.clip(text.sentence(note), LONGEST_NOTE) for note in notes)
