"""What a rule says, before it is worded and merged over GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

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
    top = (
        claims.group_by(by)
        .agg(pl.col("time_ns").sum(), count=pl.len())
        .sort(pl.col("time_ns").round(), *words, descending=[True, False, False, False])
        .head(most)
    )
    found = []
    for name, op, cause, total_ns, count in top.with_columns(*words).iter_rows():
        worst = _worst(claims, dict(zip(by, (name, op, cause), strict=True)))
        found.append(
            Evidence(
                kind="idle" if worst["is_idle"] else "activity",
                name=" / ".join(part for part in (op, name) if part) or cause,
                rank=rank,
                step=worst["number"],
                start_ns=worst["start_ns"],
                duration_ns=round(worst["time_ns"] if worst["is_idle"] else worst["duration_ns"]),
                count=count,
                numbers={"total_ms": round(total_ns / 1e6, 3), "mfu_points": round(100 * total_ns / window_ns, 2)},
            )
        )
    return found


def _worst(claims: pl.DataFrame, of: Mapping[str, str | None]) -> dict[str, Any]:
    """The longest of the claims with these words, of several as long the last."""
    such = [pl.col(column).eq_missing(pl.lit(word, pl.Categorical)) for column, word in of.items()]
    own = claims.lazy().select("number", "start_ns", "time_ns", "is_idle", "duration_ns", *of).filter(*such)
    longest = own.filter(pl.col("time_ns") == pl.col("time_ns").max()).collect()
    return longest.sort("start_ns", maintain_order=True).row(-1, named=True)
