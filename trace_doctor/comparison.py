"""Two or more reports side by side: what `compare` returns and every format shows (docs/reference/comparison-json.md).

Times are nanoseconds per step of the base's kind of unit (`Unit`), shares 0 to 1. Unknown is null.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trace_doctor.report import SCHEMA_VERSION, Report, Tool, Wall

Result = Literal["pass", "fail", "inconclusive"]


class _Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts of a comparison."""


class Comparable(_Struct, frozen=True, kw_only=True):
    """Whether the numbers may be held against each other."""

    verdict: Literal["yes", "partly", "no"] = "yes"
    """"partly": they may, but part of the change is that more or less was computed; "no": another machine or precision."""
    why: list[str] = []


class Unit(_Struct, frozen=True, kw_only=True):
    """What times are given for."""

    name: str = "step"
    """"step"; "window" where there are no steps; else the kernel that both ran and that the windows are counted by."""
    base_count: float = 1.0
    """Units in the base's window."""
    new_count: float = 1.0


class Change(_Struct, frozen=True, kw_only=True):
    """A number before and after."""

    base: float | None = None
    new: float | None = None
    change: float | None = None
    """Relative change of a time; of MFU the difference. Null where either is unknown."""
    p_value: float | None = None
    """Of a two-sided Mann-Whitney test over the steps; null: not tested."""


class Difference(_Struct, frozen=True, kw_only=True):
    """A row of both ledgers, per unit."""

    wall: Wall
    cause: str
    base_ns: int = 0
    new_ns: int = 0
    change_ns: int = 0
    """The changes of all rows sum to the change of the time of a unit."""
    proven: bool | None = None
    """By a Mann-Whitney test over the steps; null: too few steps to test."""
    names: list[str] = []
    """The kernels, ops or host ranges that changed most."""


Status = Literal["new", "gone", "slower", "faster", "same"]


class KernelChange(_Struct, frozen=True, kw_only=True):
    """A kernel of either report, exclusive time per unit."""

    name: str
    base_ns: int = 0
    new_ns: int = 0
    status: Status = "same"


class FindingChange(_Struct, frozen=True, kw_only=True):
    """A finding of either report."""

    code: str
    title: str
    severity: Literal["error", "warning", "info"]
    base_points: float | None = None
    new_points: float | None = None


class Findings(_Struct, frozen=True, kw_only=True):
    """What findings came, went or changed."""

    new: list[FindingChange] = []
    fixed: list[FindingChange] = []
    changed: list[FindingChange] = []
    """By a point of MFU or more."""


class GateResult(_Struct, frozen=True, kw_only=True):
    """A gate and what came of it."""

    expression: str
    value: float | None = None
    limit: float | None = None
    result: Result = "pass"
    tested: bool = False
    """Whether the steps were enough for a test; else it was judged on the medians."""
    culprits: list[str] = []
    """What did it."""
    why: str | None = None
    waived: str | None = None
    """The reason of the waiver that lets it pass."""


class SweepRow(_Struct, frozen=True, kw_only=True):
    """One report among several, best first."""

    label: str
    settings: dict[str, float] = {}
    """Sizes read from the file's name or the trace, such as batch."""
    step_time_ns: float | None = None
    mfu: float | None = None
    achieved_flops: float | None = None
    per_second: float | None = None
    """Samples, or tokens, a second, where the batch is known: the measure that rows are ranked by where MFU is not."""
    busy_mfu: float | None = None
    """MFU while the GPU was busy: what rows without steps are ranked by, for their windows may hold start-up."""
    binds: str = ""
    """The largest loss."""
    binds_points: float = 0.0
    binds_busy: str = ""
    """The largest loss while the GPU was busy."""
    report: int = 0
    """Position in `reports`."""


class Comparison(_Struct, frozen=True, kw_only=True):
    """What `trace-doctor compare` prints as JSON. The first report is the base; differences are of the last against it."""

    schema_version: str = SCHEMA_VERSION
    tool: Tool = Tool()
    comparable: Comparable = Comparable()
    unit: Unit = Unit()
    reports: list[Report] = []
    step_time: Change = Change()
    mfu: Change = Change()
    differences: list[Difference] = []
    kernels: list[KernelChange] = []
    kernels_more: int = 0
    """Kernels left out of the list: their changes are smaller."""
    findings: Findings = Findings()
    gates: list[GateResult] = []
    sweep: list[SweepRow] = []
    next_point: str | None = None
    """Which point of the sweep to try next, and why."""


def to_json(comparison: Comparison, *, indent: int = 2) -> bytes:
    """The comparison as one JSON document."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=indent) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema of the comparison, generated from the types."""
    return msgspec.json.schema(Comparison)
