"""Gates: what must not happen, as expressions such as `mfu<-1pt`, `step_time>+3%`, `exposed_communication>+5ms`, `new:error`.

A signed limit is a change against the base, an unsigned one (`mfu<40%`) absolute. A gate fails when its expression holds. Where both
reports have enough steps, a change that the steps' noise explains is inconclusive; with fewer it is judged on the medians.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from trace_doctor.comparing.differences import used_ns
from trace_doctor.comparing.significance import is_significant, p_value
from trace_doctor.comparing.units import steps
from trace_doctor.comparison import Difference, Findings, GateResult, KernelChange, Unit
from trace_doctor.errors import UsageError
from trace_doctor.report import Report, Wall

GRAMMAR = re.compile(
    r"^\s*(?P<metric>[a-z_]+)\s*(?P<less>[<>])\s*(?P<sign>[+-]?)(?P<number>\d+(\.\d+)?)\s*(?P<unit>%|pt|ns|us|ms|s|[KMGTP]?)\s*$"
)
NEW = re.compile(r"^\s*new:(?P<what>[a-z0-9-]+)\s*$")
EXAMPLES = "examples: 'mfu<-1pt', 'step_time>+3%', 'exposed_communication>+5ms', 'mfu<40%', 'new:error'"
SEVERITIES = ("error", "warning", "info")
MOST_CULPRITS = 3
_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}

Kind = Literal["share", "time", "rate"]


class Metric(NamedTuple):
    """What a gate may look at: its kind, and how it is read from a report with so many units in its window."""

    kind: Kind
    value: Callable[[Report, float], float | None]
    samples: Callable[[Report], list[float]] = lambda report: []
    """Its value in every step, where that is known."""


def _metric(name: str) -> Metric:
    return Metric("share", lambda report, count: getattr(report.metrics, name))


def _part(name: str) -> Metric:
    return Metric("time", lambda report, count: getattr(report.partition, f"{name}_ns") / count)


def _wall(wall: Wall) -> Metric:
    return Metric(
        "time",
        lambda report, count: sum(row.time_ns for row in report.ledger if row.wall == wall) / count,
        lambda report: _summed([row.per_step_ns for row in report.ledger if row.wall == wall]),
    )


def _summed(rows: Sequence[Sequence[int]]) -> list[float]:
    return [float(sum(column)) for column in zip(*rows, strict=True)] if all(rows) else []


METRICS: dict[str, Metric] = {
    "step_time": Metric(
        "time",
        lambda report, count: report.window.step_time_ns.median or report.window.duration_ns / count,
        used_ns,
    ),
    **{name: _metric(name) for name in ("mfu", "hfu", "gpu_utilisation", "tensor_share", "communication_overlap")},
    **{name: _metric(name) for name in ("memory_bandwidth_utilisation", "pcie_utilisation", "link_utilisation")},
    "achieved_flops": Metric("rate", lambda report, count: report.metrics.achieved_flops),
    "tokens_per_s": Metric("rate", lambda report, count: report.metrics.tokens_per_s),
    "exposed_communication": _part("exposed_communication"),
    "communication": _part("communication"),
    "exposed_copy": _part("exposed_copy"),
    "compute": _part("compute"),
    "idle": _part("idle"),
    "recompute": _wall("recompute"),
    "compute_wall": _wall("compute"),
    "memory_wall": _wall("memory"),
    "communication_wall": _wall("communication"),
    "small_kernels": _wall("small_kernels"),
    "host_wall": _wall("host"),
    "unattributed": _wall("unattributed"),
}


class Gate(NamedTuple):
    """A parsed expression: fails where the metric is below (`less`) or above the limit."""

    expression: str
    metric: str
    less: bool
    limit: float
    """Base units; a share for percent and points."""
    how: Literal["absolute", "change", "relative"]
    """Held against the value, against its change, or against its relative change."""


class NewFinding(NamedTuple):
    """A gate on findings that the base did not have: of a severity or more severe, or of a rule."""

    expression: str
    what: str


class Sides(NamedTuple):
    """What gates are judged on."""

    base: Report | None
    """Null: only absolute limits can be judged."""
    new: Report
    unit: Unit
    differences: Sequence[Difference]
    kernels: Sequence[KernelChange]
    findings: Findings


def parse(expression: str) -> Gate | NewFinding:
    """A gate from its text; UsageError where it is none."""
    if found := NEW.match(expression):
        return NewFinding(expression.strip(), found["what"])
    found = GRAMMAR.match(expression)
    if not found:
        msg = f"{expression!r} is no gate"
        raise UsageError(msg, where="--fail-on", hint=EXAMPLES)
    if found["metric"] not in METRICS:
        msg = f"{found['metric']!r} is no metric of a gate"
        raise UsageError(msg, where="--fail-on", hint=f"one of {', '.join(METRICS)}")
    limit, how = _limit(expression, METRICS[found["metric"]].kind, found["sign"], found["number"], found["unit"])
    return Gate(expression.strip(), found["metric"], found["less"] == "<", limit, how)


def _limit(
    expression: str, kind: Kind, sign: str, number: str, unit: str
) -> tuple[float, Literal["absolute", "change", "relative"]]:
    """The limit in base units: percent of a share is absolute, of a change relative; points are of shares only."""
    value = float(f"{sign}{number}")
    if unit == "%":
        return value / 100, "relative" if sign else "absolute"
    units = {"share": {"pt": 0.01}, "time": _TIMES, "rate": _COUNTS}[kind]
    if unit not in units:
        msg = f"{expression!r} needs another unit"
        raise UsageError(msg, where="--fail-on", hint=f"%, {', '.join(name for name in units if name)}; {EXAMPLES}")
    return value * units[unit], "change" if sign else "absolute"


def needs_base(gate: Gate | NewFinding) -> bool:
    """Whether a gate is about a change."""
    return isinstance(gate, NewFinding) or gate.how != "absolute"


def judge(gate: Gate | NewFinding, sides: Sides) -> GateResult:
    """What comes of a gate."""
    return _judge_findings(gate, sides) if isinstance(gate, NewFinding) else _judge_metric(gate, sides)


def _judge_findings(gate: NewFinding, sides: Sides) -> GateResult:
    if sides.base is None:
        return GateResult(expression=gate.expression, result="inconclusive", why="it needs a base to compare with")
    severe = SEVERITIES[: SEVERITIES.index(gate.what) + 1] if gate.what in SEVERITIES else ()
    hits = [one for one in sides.findings.new if one.severity in severe or gate.what in (one.code, "any")]
    return GateResult(
        expression=gate.expression,
        value=len(hits),
        limit=0,
        result="fail" if hits else "pass",
        culprits=[one.title for one in hits[:MOST_CULPRITS]],
    )


def _judge_metric(gate: Gate, sides: Sides) -> GateResult:
    metric = METRICS[gate.metric]
    after = metric.value(sides.new, sides.unit.new_count)
    before = metric.value(sides.base, sides.unit.base_count) if sides.base else None
    value = _value(gate, metric, before, after, sides)
    if value is None:
        why = "it needs a base to compare with" if sides.base is None else f"{gate.metric} is not known"
        return GateResult(expression=gate.expression, limit=gate.limit, result="inconclusive", why=why)
    hit = value < gate.limit if gate.less else value > gate.limit
    p = None
    if gate.how != "absolute" and sides.base is not None and steps(sides.base):
        p = p_value(metric.samples(sides.base), metric.samples(sides.new))
    is_noise = hit and is_significant(p) is False
    return GateResult(
        expression=gate.expression,
        value=value,
        limit=gate.limit,
        result="inconclusive" if is_noise else "fail" if hit else "pass",
        tested=p is not None,
        culprits=_culprits(gate, sides) if hit else [],
        why="inside the noise of the steps" if is_noise else None,
    )


def _value(gate: Gate, metric: Metric, before: float | None, after: float | None, sides: Sides) -> float | None:
    if after is None:
        return None
    if gate.how == "absolute":
        is_share_of_time = metric.kind == "time" and gate.expression.endswith("%")
        return after * sides.unit.new_count / sides.new.window.duration_ns if is_share_of_time else after
    if before is None:
        return None
    if gate.how == "change":
        return after - before
    return after / before - 1 if before else None if after == before else float("inf")


def _culprits(gate: Gate, sides: Sides) -> list[str]:
    """The rows of the ledger, or kernels, that grew most."""
    wall = gate.metric.removesuffix("_wall")
    grown = [one for one in sides.differences if one.change_ns > 0]
    if gate.metric == "exposed_communication":
        wall = "communication"
    own = [one for one in grown if one.wall == wall] or grown
    rows = [": ".join([f"{one.wall} / {one.cause}", *one.names[:1]]) for one in own[:MOST_CULPRITS]]
    slower = [one.name for one in sides.kernels if one.status in ("slower", "new") and one.new_ns > one.base_ns]
    return list(dict.fromkeys([*rows, *slower[:1]]))[:MOST_CULPRITS]
