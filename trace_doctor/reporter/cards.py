"""Findings in words: a card for each that is worth fixing, one line for each of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trace_doctor.report import Evidence, Finding, Report, Scope, Wall
from trace_doctor.reporter import text

MOST_CARDS = 5
MOST_LINES = 20
MOST_EVIDENCE = 3
MOST_NUMBERS = 4
LONGEST_TITLE = 120
LONGEST_NAME = 48
LONGEST_PROSE = 700
LONGEST_CODE = 1_500


class Line(NamedTuple):
    """A line of a card: what it says, in one word, and the words."""

    label: str
    words: str
    is_code: bool = False
    language: str = ""
    """Of code, where it is known."""


class Card(NamedTuple):
    """A finding that is worth fixing."""

    wall: Wall
    title: str
    points: float
    time_ns: float
    lines: tuple[Line, ...]


class Remark(NamedTuple):
    """A finding in one line."""

    wall: Wall
    title: str
    points: float
    time_ns: float


class Findings(NamedTuple):
    """All findings, largest first."""

    answer: str | None
    """What is said where nothing is worth fixing."""
    cards: tuple[Card, ...]
    more: tuple[Remark, ...]
    """Worth fixing as well, but smaller than those with a card."""
    remarks: tuple[Remark, ...]
    """Too small to act on, or nothing to fix."""
    unlisted: int
    """Remarks beyond those that a report for people can hold."""


def findings(report: Report) -> Findings:
    """The findings of a cleaned report."""
    worth = [finding for finding in report.findings if finding.severity != "info"]
    remarks = [finding for finding in report.findings if finding.severity == "info"]
    return Findings(
        answer=None if worth else _nothing(report),
        cards=tuple(_card(finding, report) for finding in worth[:MOST_CARDS]),
        more=tuple(_remark(finding) for finding in worth[MOST_CARDS:][:MOST_LINES]),
        remarks=tuple(_remark(finding) for finding in remarks[:MOST_LINES]),
        unlisted=max(len(worth) - MOST_CARDS - MOST_LINES, 0) + max(len(remarks) - MOST_LINES, 0),
    )


def _nothing(report: Report) -> str:
    if report.coverage.trust == "good":
        return "Nothing worth fixing: no loss with a known cause and a known fix is large enough to act on."
    return "Nothing that this trace proves is worth fixing; how far it can be believed stands at the end."


def _remark(finding: Finding) -> Remark:
    is_named = finding.title.lower().startswith(finding.code)
    title = text.clip(finding.title if is_named else f"{finding.code}: {finding.title}", LONGEST_TITLE)
    return Remark(finding.wall, title, finding.mfu_points, finding.lost_ns)


def _card(finding: Finding, report: Report) -> Card:
    """Cause, confidence, scope, evidence, fix, risk and check, always in this order."""
    fix = finding.fix
    lines = [
        Line("cause", text.cause(finding.wall, finding.cause)),
        Line("confidence", finding.confidence),
        Line("where", where(finding.scope, report)),
        *(Line("seen", seen(evidence)) for evidence in finding.evidence[:MOST_EVIDENCE]),
    ]
    if fix:
        lines += [
            Line("fix", fix.summary),
            Line(
                f"in {fix.framework}" if fix.framework else "code",
                (fix.code or "").strip("\n"),
                is_code=True,
                language=fix.language or "",
            ),
            Line("risk", fix.risk or ""),
            Line("check", fix.verify or ""),
        ]
    lines.append(Line("more", f"trace-doctor explain {finding.code}"))
    return Card(
        wall=finding.wall,
        title=text.clip(finding.title, LONGEST_TITLE),
        points=finding.mfu_points,
        time_ns=finding.lost_ns,
        lines=tuple(
            line._replace(
                label=text.clip(line.label, 24),
                words=text.clip(line.words, LONGEST_CODE if line.is_code else LONGEST_PROSE),
            )
            for line in lines
            if line.words
        ),
    )


def where(scope: Scope, report: Report) -> str:
    """The steps and ranks that a finding is about."""
    used = [step.number for step in report.window.steps if step.used]
    of_steps = ""
    if used and scope.steps:
        is_all = set(scope.steps) >= set(used)
        of_steps = (
            f"all {text.plural(len(used), 'step')}" if is_all and len(used) > 1 else _numbered("step", scope.steps)
        )
    ranks = [gpu.rank for gpu in report.gpus]
    of_ranks = ""
    if scope.ranks:
        is_all = len(ranks) > 1 and set(scope.ranks) >= set(ranks)
        of_ranks = f"all {text.plural(len(scope.ranks), 'rank')}" if is_all else _numbered("rank", scope.ranks)
    return ", ".join(part for part in (of_steps, of_ranks) if part)


def _numbered(noun: str, numbers: Sequence[int]) -> str:
    return f"{noun}{'' if len(numbers) == 1 else 's'} {text.ranges(numbers)}"


def seen(evidence: Evidence) -> str:
    """A line that can be checked in the trace: how often, what, how long and where, and the numbers of the rule."""
    names = dict.fromkeys(text.clip(text.kernel(part), LONGEST_NAME) for part in evidence.name.split(" / "))
    count = f"{evidence.count:,}× " if evidence.count is not None and evidence.kind != "step" else ""
    idle = "idle at " if evidence.kind == "idle" else ""
    numbers = sorted(
        evidence.numbers.items(), key=lambda item: (item[0] != "total_ms", item[0] == "mfu_points", item[0])
    )
    details = [_measure(key, value) for key, value in numbers if key != "total_ms" or evidence.count != 1]
    details = [*details[:MOST_NUMBERS], *_duration(evidence)]
    return f"{count}{idle}{' / '.join(names)}" + (f": {', '.join(details)}" if details else "")


def _duration(evidence: Evidence) -> list[str]:
    """The duration of the one with a start, the longest of several; without a start of all together."""
    if evidence.duration_ns is None:
        return []
    several, has_start = (evidence.count or 1) > 1, evidence.start_ns is not None
    words = ("longest " if has_start else "in all ") if several else ""
    step = f" in step {evidence.step}" if has_start and evidence.step is not None else ""
    return [f"{words}{text.duration(evidence.duration_ns)}{step}"]


UNITS_NS = {"_ns": 1.0, "_us": 1e3, "_ms": 1e6}
UNITS_BYTES = {"_mb": 1e6, "_gb": 1e9}


def _measure(key: str, value: float) -> str:
    """A number of a rule by the unit that its key ends in."""
    words = text.clip(key.replace("_", " "), LONGEST_NAME)
    if key == "mfu_points":
        return f"{text.points(value)} points"
    if key == "total_ms":
        return f"in all {text.duration(value * 1e6)}"
    if key == "times_the_median":
        return f"{value:.3g} × the median"
    if key[-3:] in UNITS_NS:
        return f"{words[:-3]} {text.duration(value * UNITS_NS[key[-3:]])}"
    if key.endswith("_gb_s"):
        return f"{words[:-5]} {text.rate(value * 1e9, 'B/s')}"
    if key[-3:] in UNITS_BYTES:
        return f"{words[:-3]} {text.rate(value * UNITS_BYTES[key[-3:]], 'B')}"
    if key.endswith("_gib"):
        return f"{words[:-4]} {text.size(value * 2**30)}"
    if key.endswith("_bytes"):
        return f"{words[:-6]} {text.rate(value, 'B')}"
    if key.endswith("_share"):
        return f"{words[:-6]} {text.percent(value)}"
    return f"{words} {value:,.4g}"
