"""What a report for people says, and in which order: the terminal and Markdown draw the same `View`.

1. the verdict: MFU, where that stands, GPU utilisation and why the two differ
2. the waterfall from the peak down to MFU, a row a wall
3. findings, where there are any, and the largest causes
4. the steps, and a row a GPU where there are several
5. what the numbers rest on and what was left out
"""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from trace_doctor.report import WALLS, Finding, Gpu, LedgerRow, Report, Wall
from trace_doctor.reporter import text, verdict
from trace_doctor.reporter.text import Column

SMALLEST_POINTS = 1.0
SMALLEST_SHARE = 0.005
"""Of a contributor that is not the first."""
MOST_CAUSES = 8
MOST_TOPS = 3
MOST_FINDINGS = 10
MOST_GPUS = 16
MOST_NOTES = 20
MOST_STEPS = 6
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


class Card(NamedTuple):
    """A finding: its loss, what shows it, and what to do."""

    wall: Wall
    title: str
    points: float
    time_ns: float
    evidence: tuple[str, ...]
    fix: str | None
    code: str | None


class View(NamedTuple):
    """All that a report for people shows, in order."""

    subject: str
    headline: str
    verdict: tuple[str, ...]
    next_step: str | None
    facts: tuple[str, ...]
    waterfall: str
    """Title of the bars."""
    per: str
    """What times are given for: "step", or "window" where there are no steps."""
    column: Column
    bars: tuple[Bar, ...]
    findings: tuple[Card, ...]
    more_findings: str | None
    causes: tuple[Cause, ...]
    more_causes: str | None
    steps: tuple[str, ...]
    gpu_header: tuple[str, ...]
    gpus: tuple[tuple[str, ...], ...]
    more_gpus: str | None
    notes: tuple[str, ...]


def view(report: Report) -> View:
    """The report in words, every string of the trace made harmless."""
    report = text.cleaned(report)
    per_ns = step_ns(report)
    shown, rest = _causes(report)
    return View(
        subject=_subject(report),
        headline=verdict.headline(report),
        verdict=verdict.sentences(report),
        next_step=verdict.next_step(report),
        facts=_facts(report),
        waterfall="Where the time goes" + (", from the peak down to MFU" if report.metrics.mfu is not None else ""),
        per="step" if report.window.step_time_ns.mean else "window",
        column=text.column(per_ns),
        bars=_bars(report),
        findings=tuple(_card(finding) for finding in report.findings[:MOST_FINDINGS]),
        more_findings=_more(len(report.findings) - MOST_FINDINGS, "finding"),
        causes=shown,
        more_causes=rest,
        steps=_steps(report),
        gpu_header=(
            "GPU",
            "step" if report.window.step_time_ns.mean else "window",
            "MFU",
            "busy",
            "exposed comm.",
            "idle",
        ),
        gpus=tuple(_gpu(gpu) for gpu in report.gpus[:MOST_GPUS]) if len(report.gpus) > 1 else (),
        more_gpus=_folded(report.gpus[MOST_GPUS:]),
        notes=_notes(report),
    )


def step_ns(report: Report) -> float:
    """The time that all rows are given for: the mean step, or the window where there are no steps."""
    return report.window.step_time_ns.mean or float(report.window.duration_ns)


def _subject(report: Report) -> str:
    names = [PurePath(source.path.replace("\\", "/")).name for source in report.sources]
    files = f"{names[0]} … {names[-1]} ({len(names)} files)" if len(names) > 1 else "".join(names)
    gpus = f"{report.device.count} × {report.device.name or 'unknown GPU'}" if report.device.count else ""
    return text.clip(" · ".join(part for part in (files, gpus) if part), 160)


def _facts(report: Report) -> tuple[str, ...]:
    metrics, window = report.metrics, report.window
    used = sum(step.used for step in window.steps)
    facts = [
        f"step {text.duration(window.step_time_ns.median)} ({f'median of {used}' if used > 1 else 'the only one'})"
        if window.step_time_ns.median
        else f"window {text.duration(window.duration_ns)}, no steps found",
        f"GPU busy {text.percent(metrics.gpu_utilisation)}",
        f"in tensor kernels {text.percent(metrics.tensor_share)}",
    ]
    optional = [
        ("HFU", text.percent(metrics.hfu) if metrics.hfu is not None and metrics.hfu != metrics.mfu else None),
        (
            "achieved",
            f"{text.rate(metrics.achieved_flops, 'FLOP/s')} per GPU" if metrics.achieved_flops is not None else None,
        ),
        ("throughput", f"{text.number(metrics.tokens_per_s)} tokens/s" if metrics.tokens_per_s is not None else None),
        ("communication overlapped", _share_or_none(metrics.communication_overlap)),
        ("memory bandwidth", _share_or_none(metrics.memory_bandwidth_utilisation)),
        ("links", _share_or_none(metrics.link_utilisation)),
        ("PCIe", _share_or_none(metrics.pcie_utilisation)),
    ]
    facts += [f"{name} {value}" for name, value in optional if value is not None]
    return tuple(facts + [f"MFU against {d} {text.percent(mfu)}" for d, mfu in sorted(metrics.mfu_by_peak.items())])


def _share_or_none(share: float | None) -> str | None:
    return None if share is None else text.percent(share)


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
    label = text.WALLS[row.wall].label
    used = sum(step.used for step in report.window.steps) or 1
    per_window = report.window.duration_ns or 1
    ranked = sorted(row.top, key=lambda top: -abs(top.time_ns))[:MOST_TOPS]
    return Cause(
        wall=row.wall,
        title=label if row.cause == label else text.clip(f"{label}: {row.cause}", LONGEST_TITLE),
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


def _card(finding: Finding) -> Card:
    def evidence_line(name: str, numbers: dict[str, float], count: int | None, duration_ns: int | None) -> str:
        parts = [text.kernel(name)]
        parts += [f"{count:,} times"] if count is not None else []
        parts += [text.duration(duration_ns)] if duration_ns is not None else []
        parts += [f"{key.replace('_', ' ')} {value:,.4g}" for key, value in sorted(numbers.items())[:4]]
        return text.clip(", ".join(parts), LONGEST_NOTE)

    return Card(
        wall=finding.wall,
        title=text.clip(f"{finding.title} ({finding.code})", LONGEST_TITLE),
        points=finding.mfu_points,
        time_ns=finding.lost_ns,
        evidence=tuple(evidence_line(e.name, e.numbers, e.count, e.duration_ns) for e in finding.evidence[:MOST_TOPS]),
        fix=text.clip(finding.fix.summary, LONGEST_NOTE) if finding.fix else None,
        code=finding.fix.code if finding.fix else None,
    )


def _more(count: int, noun: str) -> str | None:
    return f"{text.plural(count, f'more {noun}')}" if count > 0 else None


def _steps(report: Report) -> tuple[str, ...]:
    window, time = report.window, report.window.step_time_ns
    if not window.steps:
        return (text.sentence(window.rule or "no steps found: the whole trace is one window"),)
    used = [step for step in window.steps if step.used]
    lines = [f"{len(used)} of {text.plural(len(window.steps), 'step')} used: {window.rule}"]
    if time.median and time.min is not None and time.max is not None and len(used) > 1:
        spread = (time.max - time.min) / time.median
        lines.append(
            f"median {text.duration(time.median)}, from {text.duration(time.min)} to {text.duration(time.max)}"
            f" (spread {text.percent(spread)} of the median)"
        )
    out = [
        f"step {step.number} left out: {step.why_not or 'no reason given'}" for step in window.steps if not step.used
    ]
    lines += out[:MOST_STEPS]
    more = _more(len(out) - MOST_STEPS, "step")
    return tuple(
        text.clip(text.sentence(line), LONGEST_NOTE) for line in [*lines, *([f"{more} left out"] if more else [])]
    )


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
    if coverage.tables_missing:
        notes.append(f"Not recorded in this trace: {', '.join(coverage.tables_missing)}")
    notes += [f"GPU: {report.device.basis}"] if report.device.basis and report.device.peak_dtype else []
    notes += [f"Not judged: {skipped.why}" for skipped in coverage.abstained]
    told = {*coverage.why, *(message.message for message in report.warnings if message.code == "unknown-peak")}
    warnings = [message.message for message in report.warnings if message.message not in told]
    notes += [f"Warning: {warning}" for warning in warnings[:MOST_NOTES]]
    notes += [f"{more}: see the JSON report"] if (more := _more(len(warnings) - MOST_NOTES, "warning")) else []
    return tuple(text.clip(text.sentence(note), LONGEST_NOTE) for note in notes)
