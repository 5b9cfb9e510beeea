"""The tracks of trace-doctor: for each GPU its steps, the cause of every interval and its curves; and the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import polars as pl

from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.overlay.causes import PS, causes
from trace_doctor.overlay.counters import UNITS, counters
from trace_doctor.overlay.events import CATEGORY, event, lines, members, microseconds, named, quoted
from trace_doctor.report import Evidence, Finding, Gpu, Report
from trace_doctor.reporter import text

FIRST_PID = 1_900_000_000
"""Far above the process ids of operating systems and the numbers of GPUs."""
TRACKS = 4
STEPS, CAUSES = 1, 2
ON_TOP = -1_000_000
"""The place of our first process among all."""
Shown = Callable[[str], str]


def harmless(words: str) -> str:
    """Text without anything invisible, and not longer than a reader can use."""
    return text.clean(text.clip(words, text.LONGEST))


def tracks(report: Report, analyses: Sequence[Analysis], named_as: Shown) -> Iterator[bytes]:
    """All events; `named_as` says how a name of the trace is shown."""

    def shown(name: str) -> str:
        return harmless(named_as(name))

    yield from findings(report)
    for place, (analysis, gpu) in enumerate(zip(analyses, report.gpus, strict=True), 1):
        pid = FIRST_PID + TRACKS * place
        yield from _names(pid, place, gpu)
        yield from _steps(pid, analysis)
        yield from _causes(pid, analysis, shown)
        yield from _counters(pid, analysis, gpu)


def _names(pid: int, place: int, gpu: Gpu) -> Iterator[bytes]:
    rank = f", rank {gpu.rank}" if gpu.rank is not None else ""
    yield from named("process", f"trace-doctor: GPU {harmless(gpu.device)}{rank}", pid, pid, ON_TOP + place)
    yield from named("thread", "steps", pid, pid + STEPS, STEPS)
    yield from named("thread", "cause of the time", pid, pid + CAUSES, CAUSES)


def _steps(pid: int, analysis: Analysis) -> Iterator[bytes]:
    steps = analysis.window.steps.filter(pl.col("device") == analysis.number)
    yield from lines(
        steps.with_columns(why_not=quoted(steps["why_not"], harmless)),
        {
            "ph": "X",
            "cat": CATEGORY,
            "name": pl.format('"step {}"', "number"),
            "pid": pid,
            "tid": pid + STEPS,
            "ts": microseconds(pl.col("start_ns")),
            "dur": microseconds(pl.col("end_ns") - pl.col("start_ns")),
            "args": members({"used": pl.col("used"), "why not": pl.col("why_not")}),
        },
    )


def _causes(pid: int, analysis: Analysis, shown: Shown) -> Iterator[bytes]:
    drawn = causes(analysis.account)
    titles = drawn.select(pl.concat_str(pl.col("wall", "cause").cast(pl.String), separator="\0")).to_series()
    yield from lines(
        drawn.with_columns(
            title=quoted(titles, _title), name=quoted(drawn["name"], shown), op=quoted(drawn["op"], shown)
        ),
        {
            "ph": "X",
            "cat": CATEGORY,
            "name": pl.col("title"),
            "pid": pid,
            "tid": pid + CAUSES,
            "ts": microseconds(pl.col("start_ns"), pl.col("start_ps")),
            "dur": microseconds(pl.col("length_ps") // PS, pl.col("length_ps") % PS),
            "args": members(
                {
                    "name": pl.col("name"),
                    "op": pl.col("op"),
                    "basis": pl.format('"{}"', pl.col("basis").cast(pl.String)),
                }
            ),
        },
    )


def _title(wall_and_cause: str) -> str:
    """The words of the report: the wall and the cause, or one where they are the same."""
    wall, cause = wall_and_cause.split("\0")
    label = next(words.label for name, words in text.WALLS.items() if name == wall)
    return label if cause == label or wall == "mfu" else f"{label}: {cause}"


def _counters(pid: int, analysis: Analysis, gpu: Gpu) -> Iterator[bytes]:
    values = counters(analysis, gpu)
    for name in values.columns[1:]:
        yield from lines(
            values,
            {
                "ph": "C",
                "cat": CATEGORY,
                "name": name,
                "pid": pid,
                "ts": microseconds(pl.col("start_ns")),
                "args": members({UNITS[name]: pl.col(name)}),
            },
        )


def findings(report: Report) -> Iterator[bytes]:
    """A track a finding: its evidence where it happened; what has no time stands at the start of the window."""
    if not report.findings:
        return
    yield from named("process", "trace-doctor: findings", FIRST_PID, FIRST_PID, ON_TOP)
    number = 0
    for place, finding in enumerate(report.findings, 1):
        title = harmless(f"{place}. {finding.title} ({text.points(finding.mfu_points)} points)")
        timed = [one for one in finding.evidence if one.start_ns is not None]
        for one in timed:
            number += 1
            yield from _evidence(title, number, finding, one)
        if not timed:
            numbers = _numbers(finding)
            yield event("i", title, FIRST_PID, FIRST_PID, at_ns=report.window.start_ns, s="p", args=numbers)


def _evidence(title: str, number: int, finding: Finding, one: Evidence) -> Iterator[bytes]:
    """As an asynchronous slice: unlike others, those of one finding may overlap."""
    start_ns = one.start_ns or 0
    seen = {"seen": harmless(one.name), "rank": one.rank, "step": one.step, "times": one.count, **one.numbers}
    numbers = {**_numbers(finding), **{harmless(key): value for key, value in seen.items() if value is not None}}
    yield event("b", title, FIRST_PID, FIRST_PID, at_ns=start_ns, id=number, args=numbers)
    yield event("e", title, FIRST_PID, FIRST_PID, at_ns=start_ns + (one.duration_ns or 0), id=number)


def _numbers(finding: Finding) -> dict[str, str | float]:
    return {
        "code": finding.code,
        "lost ms a step": finding.lost_ns / 1e6,
        "MFU points": finding.mfu_points,
        "severity": finding.severity,
        "confidence": harmless(finding.confidence),
        **({"fix": harmless(finding.fix.summary)} if finding.fix else {}),
        "more": f"trace-doctor explain {finding.code}",
    }
