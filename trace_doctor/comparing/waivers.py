"""Waivers: gates that may fail until a day, for a reason that the report repeats."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import msgspec

from trace_doctor.comparison import GateResult


class Waiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[waivers]]` of the config file."""

    gate: str
    """The expression of the gate, as it is given."""
    reason: str
    expires: date
    """The last day on which it holds."""


def waive(results: Sequence[GateResult], waivers: Sequence[Waiver], today: date) -> list[GateResult]:
    """The results, those that a waiver lets pass marked with its reason."""
    return [_waived(result, waivers, today) for result in results]


def expired(waivers: Sequence[Waiver], today: date) -> list[Waiver]:
    """Waivers that no longer hold: their gates count again."""
    return [waiver for waiver in waivers if waiver.expires < today]


def _waived(result: GateResult, waivers: Sequence[Waiver], today: date) -> GateResult:
    for waiver in waivers:
        is_meant = "".join(waiver.gate.split()) == "".join(result.expression.split())
        if is_meant and result.result != "pass" and waiver.expires >= today:
            reason = f"{waiver.reason} (until {waiver.expires.isoformat()})"
            return msgspec.structs.replace(result, waived=reason)
    return result
