"""What a rule says, before it is worded and merged over GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import polars as pl

from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.fixes.case import Case
from trace_doctor.report import Evidence

MOST_EVIDENCE = 4


class Draft(NamedTuple):
    """A loss that a rule recognised on one GPU."""

    claims: pl.DataFrame
    """The rows of `Case.charges` that it explains, `time_ns` at most what is left of each."""
    confidence: str
    """"high", "medium" or "low", and after a colon why."""
    words: Mapping[str, str] = {}
    """What the title and texts of the advice leave blank."""
    variant: str = ""
    """Which advice of the rule fits; "" is its first."""
    evidence: tuple[Evidence, ...] = ()
    """What proves it beyond the largest contributors, which are added."""
    steps: tuple[int, ...] = ()
    """The steps it happens in, where not all."""
    is_remark: bool = False
    """Never more than `info`: it says how far the trace can be believed, or what could be tried."""


Find = Callable[[Case], Iterable[Draft]]


class Need(NamedTuple):
    """What a rule can't do without."""

    why: str
    """Said in `coverage.abstained` where it is missing."""
    is_met: Callable[[Analysis], bool]


class Rule(NamedTuple):
    """A rule of the registry; `code` names its advice in advice.toml and its page in docs/rules."""

    code: str
    find: Find
    needs: tuple[Need, ...] = ()


def whole(
    *causes: str, confidence: str, is_remark: bool = False, variant: Callable[[Case], str] = lambda _: ""
) -> Find:
    """A rule that claims all that is left of these causes; `variant` chooses among its advice."""

    def find(case: Case) -> Iterable[Draft]:
        claims = case.caused(*causes)
        if case.is_worth_saying(claims):
            words = largest(claims) | {"where": case.where}
            yield Draft(claims, confidence, words=words, variant=variant(case), is_remark=is_remark)

    return find


def largest(claims: pl.DataFrame) -> dict[str, str]:
    """Words for the largest contributor: `name` (kernel, range or call) and `op`."""
    sums = claims.group_by("name", "op").agg(pl.col("time_ns").sum())
    sums = sums.with_columns(pl.col("name", "op").cast(pl.String)).sort(
        ["time_ns", "name", "op"], descending=[True, False, False]
    )
    if sums.is_empty():
        return {"name": "", "op": ""}
    name, op = sums.select("name", "op").row(0)
    return {"name": name or "", "op": op or name or ""}


def contributors(
    claims: pl.DataFrame, *, rank: int | None, window_ns: int, most: int = MOST_EVIDENCE
) -> list[Evidence]:
    """The largest contributors to `claims`, each with its worst instance, to be looked up in the trace: start and duration are its own."""
    by = ["name", "op", "cause"]
    words = [pl.col(name).cast(pl.String) for name in by]
    lasting = pl.when("is_idle").then("time_ns").otherwise("duration_ns").alias("lasts_ns")
    top = (
        claims.group_by(by)
        .agg(pl.col("time_ns").sum(), count=pl.len())
        .sort(pl.col("time_ns").round(), *words, descending=[True, False, False, False])
        .head(most)
    )
    worst = (
        claims.select(*by, "number", "start_ns", "is_idle", lasting, longest_ns="time_ns")
        .join(top, on=by, how="semi", nulls_equal=True)
        .sort("longest_ns", "start_ns")
        .group_by(by)
        .agg(pl.col("is_idle").first(), pl.col("number", "start_ns", "lasts_ns").last())
    )
    sums = top.join(worst, on=by, nulls_equal=True, maintain_order="left").with_columns(*words)
    return [
        Evidence(
            kind="idle" if is_idle else "activity",
            name=" / ".join(part for part in (op, name) if part) or cause,
            rank=rank,
            step=number,
            start_ns=start_ns,
            duration_ns=round(lasts_ns),
            count=count,
            numbers={"total_ms": round(time_ns / 1e6, 3), "mfu_points": round(100 * time_ns / window_ns, 2)},
        )
        for name, op, cause, time_ns, count, is_idle, number, start_ns, lasts_ns in sums.select(
            "name", "op", "cause", "time_ns", "count", "is_idle", "number", "start_ns", "lasts_ns"
        ).iter_rows()
    ]
