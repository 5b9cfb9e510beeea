"""One comparison of all reports: the last against the first, and a sweep where there are more."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from trace_doctor.comparing import differences, gates
from trace_doctor.comparing.comparable import comparable
from trace_doctor.comparing.sweep import sweep
from trace_doctor.comparing.units import unit_of
from trace_doctor.comparison import Comparison, Findings, GateResult
from trace_doctor.errors import UsageError
from trace_doctor.report import Report, Tool


def compare(reports: Sequence[Report], fail_on: Sequence[gates.Gate | gates.NewFinding | str] = ()) -> Comparison:
    """The last report against the first; UsageError for fewer than two, or for a gate that is none."""
    if len(reports) < 2:
        msg = "there is nothing to compare: one report"
        raise UsageError(msg, hint="trace-doctor compare BASE NEW")
    parsed = [gates.parse(gate) if isinstance(gate, str) else gate for gate in fail_on]
    base, new = reports[0], reports[-1]
    unit = unit_of(base, new)
    rows = differences.ledger(base, new, unit)
    kernels, more = differences.kernels(base, new, unit)
    found = differences.findings(base, new)
    sides = gates.Sides(base, new, unit, rows, kernels, found)
    ranked, next_point = sweep(reports) if len(reports) > 2 else ([], None)
    return Comparison(
        tool=Tool(version=version("trace-doctor")),
        comparable=comparable(base, new),
        unit=unit,
        reports=list(reports),
        step_time=differences.step_time(base, new, unit),
        mfu=differences.mfu(base, new),
        differences=rows,
        kernels=kernels,
        kernels_more=more,
        findings=found,
        gates=[gates.judge(gate, sides) for gate in parsed],
        sweep=ranked,
        next_point=next_point,
    )


def judge_alone(report: Report, fail_on: Sequence[gates.Gate | gates.NewFinding]) -> list[GateResult]:
    """What comes of absolute limits for one report."""
    sides = gates.Sides(None, report, unit_of(report, report), [], [], Findings())
    return [gates.judge(gate, sides) for gate in fail_on]
