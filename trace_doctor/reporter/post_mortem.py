"""The document that a team keeps of a slow run, as Markdown: what ran, what was slow and since when, proof, cost, fixes in order.

Everything is drawn from the report; what only people know (owners, dates, lessons) is left blank to be filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from trace_doctor.report import Finding, LedgerRow, Report, Step
from trace_doctor.reporter import text
from trace_doctor.reporter.cards import Card
from trace_doctor.reporter.markdown import code, escape, table
from trace_doctor.reporter.view import View, step_ns, view

MARKER = "<!-- trace-doctor post-mortem -->"
BLANK = "…"
"""What people fill in."""
MOST_SOURCES = 16
MOST_STEPS = 40
PRESENT = 0.5
"""A cause is there in a step where it takes at least this share of what it takes in its worst step."""
HOURS = 24
STEPS = 1_000


def render(report: Report) -> str:
    """The post-mortem of a report."""
    shown, report = view(report), text.cleaned(report)
    slow = [finding for finding in report.findings if finding.severity != "info"]
    parts = [
        _head(shown),
        _summary(shown),
        _what_ran(report, shown),
        _timeline(report, shown),
        _slow(slow, report, shown),
        _proof(shown),
        _cost(slow, report),
        _fixes(shown),
        _unknown(shown),
        [
            "## Lessons",
            "",
            f"- What went well: {BLANK}",
            f"- What went wrong: {BLANK}",
            f"- Where we were lucky: {BLANK}",
            "",
        ],
    ]
    return text.plain("\n".join(line for part in parts for line in part)).rstrip() + "\n"


def _head(shown: View) -> list[str]:
    rows = [["date of the run", BLANK], ["authors", BLANK], ["state", "draft"]]
    return [MARKER, f"# Post-mortem: {escape(shown.subject)}", "", *table(["", ""], rows), ""]


def _summary(shown: View) -> list[str]:
    return ["## Summary", "", f"**{escape(shown.headline)}**", "", *(escape(line) + "\n" for line in shown.verdict)]


def _what_ran(report: Report, shown: View) -> list[str]:
    device, work, window = report.device, report.workload, report.window
    peak = device.peak_flops.get(device.peak_dtype or "")
    used = [step.number for step in window.steps if step.used]
    rows = [
        ["GPUs in the traces", f"{device.count:,} × {device.name or 'unknown'}"],
        ["peak", f"{device.peak_dtype} dense, {text.rate(peak, 'FLOP/s')}" if peak else "unknown"],
        ["work of a step and GPU", text.rate(work.model_flops_per_step, "FLOP")],
        ["FLOPs", work.formula or text.BASES.get(work.flops_basis or "", "unknown")],
        ["tokens of a step", f"{work.tokens_per_step:,.0f}" if work.tokens_per_step else "unknown"],
        ["window", f"{text.duration(window.duration_ns)}, {text.sentence(window.rule)}"],
        ["steps used", f"{text.ranges(used)} ({len(used):,} of {len(window.steps):,})" if used else "no steps found"],
        ["analysed by", f"trace-doctor {report.tool.version}"],
    ]
    options = ", ".join(f"{name} = {value}" for name, value in sorted(report.tool.options.items()))
    rows += [["options", options]] if options else []
    sources = [
        [
            code(text.clip(PurePath(source.path.replace("\\", "/")).name, 80)),
            escape(text.clip(source.format, 16)),
            "" if source.rank is None else str(source.rank),
            "" if source.size_bytes is None else f"{source.size_bytes:,}",
            code((source.sha256 or "")[:16]),
        ]
        for source in report.sources[:MOST_SOURCES]
    ]
    more = len(report.sources) - MOST_SOURCES
    return [
        "## What ran",
        "",
        *table(["", ""], [[escape(key), escape(text.clip(value, 400))] for key, value in rows]),
        "",
        *table(["trace", "format", "rank", "bytes", "SHA-256 begins"], sources, right=(2, 3)),
        "",
        *([f"And {text.plural(more, 'more trace')}.", ""] if more > 0 else []),
    ]


def _timeline(report: Report, shown: View) -> list[str]:
    """The steps in order; of very many the slowest."""
    steps, median = report.window.steps, report.window.step_time_ns.median
    if not steps or not median:
        return ["## Steps", "", *(escape(line) + "\n" for line in shown.steps)]
    slowest = sorted(steps, key=lambda step: (-step.duration_ns, step.number))[:MOST_STEPS]
    listed = [step for step in steps if step in slowest]
    rows = [
        [
            str(step.number),
            text.duration(step.start_ns - steps[0].start_ns) if step.start_ns > steps[0].start_ns else "0",
            text.duration(step.duration_ns),
            f"{step.duration_ns / median:.2f}",
            escape(_remark(step)),
        ]
        for step in listed
    ]
    more = len(steps) - len(listed)
    return [
        "## Steps",
        "",
        *table(["step", "began after", "took", "× the median", ""], rows, right=(0, 1, 2, 3)),
        "",
        *([f"The slowest of {len(steps):,} steps; {text.plural(more, 'shorter one')} left out.", ""] if more else []),
        *(escape(line) + "\n" for line in shown.steps),
    ]


def _remark(step: Step) -> str:
    if not step.used:
        return f"not used: {step.why_not or 'no reason given'}"
    return "slow: explained below" if step.differences else ""


def _slow(slow: Sequence[Finding], report: Report, shown: View) -> list[str]:
    if not slow:
        return ["## What was slow, and since when", "", f"{escape(shown.findings.answer or '')}", ""]
    rows = [
        [
            str(place),
            escape(text.clip(finding.title, 120)),
            text.points(finding.mfu_points),
            text.duration(finding.lost_ns),
            escape(since(finding, report)),
        ]
        for place, finding in enumerate(slow, 1)
    ]
    header = ["", "what", "points of MFU", f"time a {shown.per}", "since when"]
    return ["## What was slow, and since when", "", *table(header, rows, right=(0, 2, 3)), ""]


def since(finding: Finding, report: Report) -> str:
    """In which steps of the window the finding's cause was there, by its row of the ledger."""
    used = [step.number for step in report.window.steps if step.used]
    row = next((row for row in report.ledger if (row.wall, row.cause) == (finding.wall, finding.cause)), None)
    if len(used) < 2:
        return "unknown: the window holds one step" if used else "unknown: no steps were found"
    there = (_there(row, used) if row else []) or [number for number in used if number in finding.scope.steps]
    if not there:
        return "unknown: the report does not hold its time in each step"
    if len(there) == len(used):
        return f"in every step, since before step {used[0]}"
    if there == used[-len(there) :]:
        return f"from step {there[0]} on"
    if there == used[: len(there)]:
        return f"up to step {there[-1]}"
    return f"in {'step' if len(there) == 1 else 'steps'} {text.ranges(there)} only"


def _there(row: LedgerRow, used: Sequence[int]) -> list[int]:
    if len(row.per_step_ns) != len(used):
        return []
    worst = max(row.per_step_ns)
    return [number for number, time_ns in zip(used, row.per_step_ns, strict=True) if time_ns >= PRESENT * worst]


def _proof(shown: View) -> list[str]:
    """What can be looked up in the trace, finding by finding."""
    if not shown.findings.cards:
        return []
    lines = ["## Proof", ""]
    for place, card in enumerate(shown.findings.cards, 1):
        lines += [f"{place}. **{escape(card.title)}**"]
        lines += [
            f"   - {escape(line.label)}: {escape(line.words)}"
            for line in card.lines
            if line.label in ("cause", "confidence", "where", "seen")
        ]
    return [*lines, ""]


class Job(NamedTuple):
    """What costs."""

    gpus: int
    is_given: bool
    price: float | None
    """Of one GPU for an hour."""


def job(report: Report) -> Job:
    """The GPUs and the price that were given; without them the GPUs in the traces."""
    options = report.tool.options
    given = options.get("gpus") or options.get("world_size")
    return Job(given or max(report.device.count, 1), given is not None, options.get("gpu_hour_price"))


def _cost(slow: Sequence[Finding], report: Report) -> list[str]:
    """GPU-hours and money of a day of such steps: loss of a finding = its points × GPUs × 24 h."""
    paid = job(report)
    hours = float(HOURS * paid.gpus)
    mfu = sum(row.mfu_points for row in report.ledger if row.wall == "mfu")
    told = sum(finding.mfu_points for finding in slow)
    items = [("the job", 100.0)]
    items += [
        (f"{place}. {text.clip(finding.title, 100)}", finding.mfu_points) for place, finding in enumerate(slow, 1)
    ]
    items += [("all that is neither MFU nor above", 100 - mfu - told)]
    rows = [
        [
            escape(name),
            text.points(points),
            _whole(points / 100 * hours),
            *([_whole(points / 100 * hours * paid.price)] if paid.price else []),
        ]
        for name, points in items
    ]
    gpus = text.plural(paid.gpus, "GPU")
    notes = [
        f"For {gpus}, {'as given' if paid.is_given else 'those in the traces: --gpus says how many the job had'}.",
        f"At {paid.price:,.10g} for a GPU and hour." if paid.price else "--gpu-hour-price says what that costs.",
    ]
    if report.window.step_time_ns.mean:
        per_step = STEPS * step_ns(report) / 3.6e12 * paid.gpus
        money = f", {_whole(per_step * paid.price)}" if paid.price else ""
        notes += [f"{STEPS:,} steps took {_whole(per_step)} GPU-hours{money}."]
    notes += ["A day of steps as slow as these; removing a loss may uncover the next, so losses are not yet savings."]
    header = ["", "points", "GPU-hours a day", *(["money a day"] if paid.price else [])]
    return [
        "## Cost",
        "",
        *table(header, rows, right=range(1, len(header))),
        "",
        *(f"- {escape(note)}" for note in notes),
        "",
    ]


def _whole(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def _fixes(shown: View) -> list[str]:
    """What to do, largest loss first, each with an owner to be named and a box to be checked."""
    lines = ["## Fixes, in order", ""]
    for place, card in enumerate(shown.findings.cards, 1):
        lines += _fix(place, card)
    first = len(shown.findings.cards) + 1
    for place, remark in enumerate(shown.findings.more, first):
        lines += [f"- [ ] **{place}.** {escape(remark.title)} — owner: {BLANK}, due: {BLANK}"]
    if not shown.findings.cards:
        lines += [f"- [ ] {BLANK} — owner: {BLANK}, due: {BLANK}"]
    return [*lines, ""]


def _fix(place: int, card: Card) -> list[str]:
    words = {line.label: line.words for line in card.lines}
    lines = [f"- [ ] **{place}.** {escape(words.get('fix', card.title))} — owner: {BLANK}, due: {BLANK}"]
    lines += [f"  - {label}: {escape(words[label])}" for label in ("risk", "check", "more") if label in words]
    return [*lines, f"  - [ ] measured again: {BLANK}"]


def _unknown(shown: View) -> list[str]:
    if not shown.notes:
        return []
    return ["## What is not known", "", *(f"- {escape(note)}" for note in shown.notes), ""]
