"""Remarks on how far the trace can be believed: no loss that a fix wins back."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from trace_doctor.classifiers.ledger import model_error_ns
from trace_doctor.fixes.case import Case
from trace_doctor.fixes.finding import Draft, largest

MODEL_ERROR_SHARE = 0.03
UNEXPLAINED = ("queued but not started", "no host events")


def unexplained_idle(case: Case) -> Iterable[Draft]:
    """Idle time that the file does not explain, where it is much or most of the idle time."""
    claims = case.caused(*UNEXPLAINED)
    idle_ns = case.analysis.account.timeline.held_ns[-1]
    if case.is_weighty(claims):
        part = float(claims["time_ns"].sum()) / idle_ns
        top = claims.group_by("cause").agg(pl.col("time_ns").sum()).sort("time_ns")["cause"].cast(pl.String)[-1]
        yield Draft(
            claims,
            "high: the trace has nothing on it",
            words=largest(claims) | {"part": f"{part:.0%}", "most": "Most" if part > 0.5 else "Part"},
            variant="" if top == UNEXPLAINED[0] else "host",
            is_remark=True,
        )


def untrusted_trace(case: Case) -> Iterable[Draft]:
    """A trace whose idle time, peak or FLOPs contradict themselves: nothing is lost, but nothing may be concluded either."""
    window = case.analysis.window
    if window.trust != "good":
        yield Draft(
            case.charges.clear(), "high: " + "; ".join(window.why), words={"why": "; ".join(window.why)}, is_remark=True
        )
    error = model_error_ns(case.analysis.account)
    busy_ns = sum(case.analysis.account.timeline.held_ns[:2])
    if busy_ns and abs(error) > MODEL_ERROR_SHARE * busy_ns:
        why = f"FLOPs and peak miss the kernels' time by {abs(error) / busy_ns:.0%}"
        yield Draft(case.charges.clear(), "high: " + why, words={"why": why}, variant="work", is_remark=True)
