"""What changed between two reports, per unit of work: rows of the ledger, kernels, findings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trace_doctor.comparing.significance import is_significant, p_value
from trace_doctor.comparison import Change, Difference, FindingChange, Findings, KernelChange, Status, Unit
from trace_doctor.report import WALLS, Finding, LedgerRow, Report, Wall

MOST_KERNELS = 30
MOST_NAMES = 3
CHANGED_SHARE = 0.05
"""A kernel that changed by less is the same."""
CHANGED_POINTS = 1.0

Row = tuple[Wall, str]


def step_time(base: Report, new: Report, unit: Unit) -> Change:
    """Time of a unit: of steps the medians, with a test over them; else the window divided by its units."""
    if unit.name == "step":
        before, after = base.window.step_time_ns.median, new.window.step_time_ns.median
        samples = (used_ns(base), used_ns(new))
    else:
        before, after = base.window.duration_ns / unit.base_count, new.window.duration_ns / unit.new_count
        samples = ([], [])
    change = after / before - 1 if before and after is not None else None
    return Change(base=before, new=after, change=change, p_value=p_value(*samples))


def mfu(base: Report, new: Report) -> Change:
    """MFU before and after; the change is in shares of the peak, so 0.01 is a point."""
    before, after = base.metrics.mfu, new.metrics.mfu
    return Change(
        base=before, new=after, change=None if before is None or after is None else after - before, p_value=None
    )


def used_ns(report: Report) -> list[float]:
    """Lengths of the used steps."""
    return [float(step.duration_ns) for step in report.window.steps if step.used]


def ledger(base: Report, new: Report, unit: Unit) -> list[Difference]:
    """The rows of both ledgers per unit, largest change first; the changes sum to the change of a unit's mean time."""
    before, after = _per_unit(base, unit.base_count), _per_unit(new, unit.new_count)
    rows = sorted(before.keys() | after.keys(), key=lambda row: (WALLS.index(row[0]), row[1]))
    found = [_difference(base, new, row, before.get(row, 0), after.get(row, 0)) for row in rows]
    return sorted(found, key=lambda one: (-abs(one.change_ns), WALLS.index(one.wall), one.cause))


def _per_unit(report: Report, count: float) -> dict[Row, int]:
    """Time of each row in a unit, in whole ns that sum to the unit's mean time."""
    exact = {(row.wall, row.cause): row.time_ns / count for row in report.ledger}
    rounded = {key: math.floor(value) for key, value in exact.items()}
    missing = round(report.window.duration_ns / count) - sum(rounded.values())
    by_remainder = sorted(exact, key=lambda key: (rounded[key] - exact[key], key))
    return rounded | {key: rounded[key] + 1 for key in by_remainder[: max(missing, 0)]}


def _difference(base: Report, new: Report, row: Row, before: int, after: int) -> Difference:
    one, other = _row(base, row), _row(new, row)
    samples = [[float(value) for value in found.per_step_ns] if found else [] for found in (one, other)]
    counts = (len(used_ns(base)), len(used_ns(new)))
    # a row that one report lacks took no time in any of its steps
    filled = [sample or [0.0] * count for sample, count in zip(samples, counts, strict=True)]
    tested = p_value(*filled) if any(samples) else None
    return Difference(
        wall=row[0],
        cause=row[1],
        base_ns=before,
        new_ns=after,
        change_ns=after - before,
        proven=is_significant(tested),
        names=_names(one, other),
    )


def _row(report: Report, row: Row) -> LedgerRow | None:
    return next((found for found in report.ledger if (found.wall, found.cause) == row), None)


def _names(one: LedgerRow | None, other: LedgerRow | None) -> list[str]:
    """Contributors of either, those whose time changed most first."""
    before = {top.name: top.time_ns for top in one.top} if one else {}
    after = {top.name: top.time_ns for top in other.top} if other else {}
    names = sorted(
        before.keys() | after.keys(), key=lambda name: (-abs(after.get(name, 0) - before.get(name, 0)), name)
    )
    return names[:MOST_NAMES]


def kernels(base: Report, new: Report, unit: Unit) -> tuple[list[KernelChange], int]:
    """The kernels whose time per unit changed most, and how many more there are."""
    before = {row.name: row.time_ns / unit.base_count for row in base.kernels.rows}
    after = {row.name: row.time_ns / unit.new_count for row in new.kernels.rows}
    # beyond the table of a report, a kernel may have run: only what both tables hold whole is new or gone
    whole = (not base.kernels.more, not new.kernels.more)
    changes = [
        KernelChange(name=name, base_ns=round(old), new_ns=round(now), status=_status(old, now))
        for name in before.keys() | after.keys()
        if (name in before or whole[0]) and (name in after or whole[1])
        for old, now in [(before.get(name, 0.0), after.get(name, 0.0))]
    ]
    ranked = sorted(changes, key=lambda one: (-abs(one.new_ns - one.base_ns), one.name))
    return ranked[:MOST_KERNELS], max(0, len(ranked) - MOST_KERNELS)


def _status(before: float, after: float) -> Status:
    if not before or not after:
        return "new" if after else "gone"
    if abs(after - before) <= CHANGED_SHARE * before:
        return "same"
    return "slower" if after > before else "faster"


def findings(base: Report, new: Report) -> Findings:
    """Findings that only the new report has, that only the base has, and that changed by a point or more."""
    pairs = _pairs(base.findings, new.findings)
    return Findings(
        new=[_finding(None, after) for before, after in pairs if not before],
        fixed=[_finding(before, None) for before, after in pairs if not after],
        changed=[
            _finding(before, after)
            for before, after in pairs
            if before and after and abs(after.mfu_points - before.mfu_points) >= CHANGED_POINTS
        ],
    )


def _pairs(base: Sequence[Finding], new: Sequence[Finding]) -> list[tuple[Finding | None, Finding | None]]:
    """The same finding in both: of one rule and cause, else of a rule that each report has left once."""
    pairs: list[tuple[Finding | None, Finding | None]] = []
    before, after = list(base), list(new)
    for is_same in (_same_cause, _same_rule):
        for one in list(after):
            others = [other for other in before if is_same(one, other)]
            rivals = [rival for rival in after if is_same(rival, one)]
            if others and (is_same is _same_cause or len(others) == len(rivals) == 1):
                pairs.append((others[0], one))
                before.remove(others[0])
                after.remove(one)
    return [*pairs, *((None, one) for one in after), *((one, None) for one in before)]


def _same_cause(one: Finding, other: Finding) -> bool:
    return (one.code, one.cause) == (other.code, other.cause)


def _same_rule(one: Finding, other: Finding) -> bool:
    return one.code == other.code


def _finding(before: Finding | None, after: Finding | None) -> FindingChange:
    shown = after or before
    assert shown is not None
    return FindingChange(
        code=shown.code,
        title=shown.title,
        severity=shown.severity,
        base_points=before.mfu_points if before else None,
        new_points=after.mfu_points if after else None,
    )
