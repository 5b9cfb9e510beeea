"""What a comparison for people says, and in which order: the terminal and Markdown draw the same `ComparisonView`.

1. the change of a step's time, and what explains it
2. gates, and the sweep, where there are any
3. the rows of both ledgers, findings that came and went, kernels
"""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from trace_doctor.comparison import Change, Comparison, Difference, FindingChange, GateResult
from trace_doctor.report import Report
from trace_doctor.reporter import text
from trace_doctor.reporter.tables import LONGEST_NAME, Table

MOST_ROWS = 12
MOST_EXPLANATIONS = 3
MOST_KERNELS = 15
NOTHING_SHARE = 0.0005
"""Changes below this share of a step are not worth a word."""
UNEQUALLY_KNOWN = 0.1
RESULTS = {"pass": "pass", "fail": "FAIL", "inconclusive": "inconclusive"}


class ComparisonView(NamedTuple):
    """All that a comparison for people shows, in order."""

    subject: str
    headline: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def view(comparison: Comparison) -> ComparisonView:
    """The comparison in words, every string of a trace made harmless."""
    comparison = text.cleaned(comparison)
    base, new = comparison.reports[0], comparison.reports[-1]
    tables = [
        _gates(comparison),
        _sweep(comparison),
        _differences(comparison),
        _findings(comparison),
        _kernels(comparison),
    ]
    return ComparisonView(
        subject=f"{_name(base)} → {_name(new)}",
        headline=headline(comparison),
        sentences=tuple(
            filter(None, (_comparable(comparison), _mfu(comparison.mfu), *_explained(comparison), _next(comparison)))
        ),
        tables=tuple(table for table in tables if table.rows),
        notes=_notes(comparison),
    )


def headline(comparison: Comparison) -> str:
    """The change of a unit's time, and whether it is proven."""
    time, what = comparison.step_time, _unit(comparison)
    if time.base is None or time.new is None or time.change is None:
        return f"The time of a {what} is not known"
    before, after = text.duration(time.base), text.duration(time.new)
    if time.base == time.new:
        return f"No difference: a {what} takes {after}"
    return f"A {what} takes {after} instead of {before}: {signed(time.change)} {_proof(comparison, time)}"


def _proof(comparison: Comparison, time: Change) -> str:
    if time.p_value is None:
        counts = [
            sum(step.used for step in report.window.steps) for report in (comparison.reports[0], comparison.reports[-1])
        ]
        few = f"{counts[0]} and {counts[1]} steps are too few" if all(counts) else "there are no steps to test"
        return f"(not tested: {few})"
    word = "proven" if time.p_value < 0.05 else "~ not proven"
    return f"({word}, p = {time.p_value:.2g})"


def signed(share: float) -> str:
    """A relative change in percent, with its sign."""
    return f"{100 * share:+.1f}{text.SPACE}%"


def _unit(comparison: Comparison) -> str:
    name = comparison.unit.name
    return name if name in ("step", "window") else f"unit of one {text.kernel(name)}"


def _name(report: Report) -> str:
    path = report.sources[0].path if report.sources else "a report"
    more = f" and {len(report.sources) - 1} more" if len(report.sources) > 1 else ""
    return "/".join(PurePath(path).parts[-2:]) + more


def _comparable(comparison: Comparison) -> str | None:
    found = comparison.comparable
    if found.verdict == "yes":
        return None
    opening = "These can't be compared" if found.verdict == "no" else "Not quite the same work"
    return f"{opening}: {'; '.join(found.why)}."


def _mfu(change: Change) -> str | None:
    if change.base is None or change.new is None:
        return None
    return f"MFU {text.percent(change.base)} → {text.percent(change.new)} ({100 * (change.new - change.base):+.1f} points)."


def _explained(comparison: Comparison) -> list[str]:
    """The largest changes of the ledger as shares of the base's time."""
    whole = sum(row.base_ns for row in comparison.differences)
    told = [row for row in comparison.differences if whole and abs(row.change_ns) >= NOTHING_SHARE * whole]
    if not told:
        return []
    parts = [f"{signed(row.change_ns / whole)} {_row(row)}" for row in told[:MOST_EXPLANATIONS]]
    rest = sum(row.change_ns for row in comparison.differences) - sum(row.change_ns for row in told[:MOST_EXPLANATIONS])
    if len(told) > MOST_EXPLANATIONS:
        parts.append(f"{signed(rest / whole)} the rest")
    return [f"By cause: {', '.join(parts)}."]


def _row(row: Difference) -> str:
    name = f" ({text.clip(text.kernel(row.names[0]), LONGEST_NAME)})" if row.names else ""
    doubt = "~ " if row.proven is False else ""
    label = "exposed communication" if row.wall == "communication" else text.WALLS[row.wall].label
    return f"{doubt}{label}: {row.cause}{name}"


def _next(comparison: Comparison) -> str | None:
    return f"Next point to try: {comparison.next_point}." if comparison.next_point else None


def _gates(comparison: Comparison) -> Table:
    rows = tuple(
        (
            "→" if gate.result == "fail" and not gate.waived else "",
            gate.expression,
            f"waived: {gate.waived}" if gate.waived else RESULTS[gate.result],
            _value(gate),
            "; ".join(filter(None, [gate.why, *gate.culprits])),
        )
        for gate in comparison.gates
    )
    return Table("Gates", ("", "gate", "result", "value", "what did it"), rows, names=frozenset({4}))


def gate_line(gate: GateResult) -> str:
    """A gate in one line: what it says, what came of it, and why."""
    gate = text.cleaned(gate)
    what = f"waived: {gate.waived}" if gate.waived else RESULTS[gate.result]
    return f"{gate.expression}: {what}, {_value(gate)}" + (f", {gate.why}" if gate.why else "")


def _value(gate: GateResult) -> str:
    if gate.value is None:
        return "unknown"
    tested = "" if gate.tested or gate.expression.startswith("new:") else " (not tested)"
    if gate.expression.startswith("new:"):
        return f"{gate.value:.0f}"
    sign = "+" if gate.value >= 0 and any(mark in gate.expression for mark in ("<-", "<+", ">-", ">+")) else ""
    if gate.expression.endswith("pt"):
        return f"{sign}{100 * gate.value:.2f} pt{tested}"
    if gate.expression.endswith("%"):
        return f"{sign}{100 * gate.value:.1f} %{tested}"
    if gate.expression[-1] == "s":
        return f"{sign}{text.duration(gate.value) if gate.value >= 0 else '-' + text.duration(-gate.value)}{tested}"
    return f"{sign}{text.number(gate.value)}{tested}"


def _differences(comparison: Comparison) -> Table:
    whole = sum(row.base_ns for row in comparison.differences) or 1
    column = text.column(max([whole, *(row.new_ns for row in comparison.differences)]))
    changed = [row for row in comparison.differences if abs(row.change_ns) >= NOTHING_SHARE * whole]
    is_tested = any(row.proven is not None for row in changed)
    rows = tuple(
        (
            text.WALLS[row.wall].label,
            row.cause,
            column.show(row.base_ns),
            column.show(row.new_ns),
            signed(row.change_ns / whole),
            *([{True: "yes", False: "~", None: "not tested"}[row.proven]] if is_tested else []),
            text.clip(text.kernel(row.names[0]), LONGEST_NAME) if row.names else "",
        )
        for row in changed[:MOST_ROWS]
    )
    header = (
        "wall",
        "cause",
        f"base {column.unit}",
        f"new {column.unit}",
        "change",
        *["proven"] * is_tested,
        "most in",
    )
    rest = len(comparison.differences) - len(rows)
    return Table(
        f"Where the change lies, per {_unit(comparison)}",
        header,
        rows,
        right=frozenset({2, 3, 4}),
        names=frozenset({len(header) - 1}),
        more=f"{text.plural(rest, 'row')} more: smaller changes or none" if rest > 0 else None,
    )


def _findings(comparison: Comparison) -> Table:
    found = comparison.findings
    rows = [
        *(_finding("new", one) for one in found.new),
        *(_finding("fixed", one) for one in found.fixed),
        *(_finding("changed", one) for one in found.changed),
    ]
    shown = tuple(rows[:MOST_ROWS])
    return Table(
        "Findings", ("", "finding", "base points", "new points"), shown, right=frozenset({2, 3}), names=frozenset({1}),
        more=f"{text.plural(len(rows) - len(shown), 'finding')} more" if len(rows) > len(shown) else None,
    )  # fmt: skip


def _finding(word: str, one: FindingChange) -> tuple[str, ...]:
    before, after = (text.points(value) if value is not None else "–" for value in (one.base_points, one.new_points))
    return word, f"{one.title} ({one.code})", before, after


def _kernels(comparison: Comparison) -> Table:
    changed = [kernel for kernel in comparison.kernels if kernel.status != "same"]
    column = text.column(max([1, *(max(kernel.base_ns, kernel.new_ns) for kernel in changed)]))
    rows = tuple(
        (
            kernel.status,
            text.clip(text.kernel(kernel.name), LONGEST_NAME),
            column.show(kernel.base_ns),
            column.show(kernel.new_ns),
        )
        for kernel in changed[:MOST_KERNELS]
    )
    return Table(
        f"Kernels that came, went or changed, per {_unit(comparison)}",
        ("", "kernel", f"base {column.unit}", f"new {column.unit}"),
        rows,
        right=frozenset({2, 3}),
        names=frozenset({1}),
        is_detail=True,
    )


def _sweep(comparison: Comparison) -> Table:
    """Samples a second are shown where MFU is not known: they are what is ranked by then."""
    ranked = comparison.sweep
    by_rate = any(row.mfu is None for row in ranked)
    rows = tuple(
        (
            str(place),
            text.clip(row.label, LONGEST_NAME),
            text.duration(row.step_time_ns),
            *(
                [text.number(row.per_second) if row.per_second else "–"]
                if by_rate
                else [_fine(row.mfu), _fine(row.busy_mfu)]
            ),
            f"{row.binds.partition(' / ')[2]} {text.points(row.binds_points)}",
            row.binds_busy.partition(" / ")[2],
        )
        for place, row in enumerate(ranked, 1)
    )
    measures = ("a second",) if by_rate else ("MFU", "while busy")
    header = ("", "point", "time", *measures, "binds, points", "while busy")
    numbers = range(2, 3 + len(measures))
    return Table(
        "Sweep, best first",
        header,
        rows,
        right=frozenset(numbers),
        names=frozenset({1, len(header) - 2, len(header) - 1}),
    )


def _fine(share: float | None) -> str:
    return "–" if share is None else f"{text.number(100 * share, 3)} %"


def _notes(comparison: Comparison) -> tuple[str, ...]:
    notes = []
    if comparison.unit.name not in ("step", "window"):
        notes.append(
            f"There are no steps: windows are compared per launch of {text.kernel(comparison.unit.name)} "
            f"({text.number(comparison.unit.base_count)} and {text.number(comparison.unit.new_count)} a GPU)."
        )
    if len(comparison.reports) > 2:
        notes.append("Differences are those of the last report against the first.")
    known = [report.coverage.modelled_share for report in (comparison.reports[0], comparison.reports[-1])]
    if None not in known and abs((known[0] or 0) - (known[1] or 0)) > UNEQUALLY_KNOWN:
        shares = " and ".join(text.percent(share, 0) for share in known)
        notes.append(
            f"The work of kernels is not known equally well ({shares} of their time), so causes shift between rows."
        )
    for label, report in (("base", comparison.reports[0]), ("new", comparison.reports[-1])):
        if report.coverage.trust != "good":
            notes.append(f"Idle time of the {label} can't be believed: {'; '.join(report.coverage.why)}.")
    return tuple(notes)
