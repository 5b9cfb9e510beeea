"""Rules for the host wall: what kept the host from launching."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from trace_doctor.fixes.case import Case
from trace_doctor.fixes.finding import Draft, largest
from trace_doctor.report import Evidence

MOSTLY = 0.5


def host_synchronisation(case: Case) -> Iterable[Draft]:
    """Idle time that waits for the GPU caused, because the host would otherwise have been ahead (the debt rule)."""
    claims = case.caused("synchronisation")
    if case.is_worth_saying(claims):
        calls = case.analysis.account.timeline.pieces["process"].n_unique()
        yield Draft(
            claims,
            "high: the waits are recorded, and only idle time that they explain is counted",
            words=largest(claims) | {"processes": str(calls)},
        )


def pageable_copy(case: Case) -> Iterable[Draft]:
    """Input copied from pageable memory while nothing else ran."""
    claims = _input_copies(case).filter(_is_pageable())
    if case.is_worth_saying(claims):
        yield Draft(
            claims, "high: the profiler names the memory, and nothing else ran", words=largest(claims) | _rate(claims)
        )


def exposed_input_copy(case: Case) -> Iterable[Draft]:
    """Input copied from pinned memory while nothing else ran."""
    claims = _input_copies(case).filter(~_is_pageable())
    if case.is_worth_saying(claims):
        yield Draft(claims, "high: measured, nothing else ran", words=largest(claims) | _rate(claims))


def _input_copies(case: Case) -> pl.DataFrame:
    return case.with_kernels(case.caused("input transfer"), "bytes", "duration_ns")


def _is_pageable() -> pl.Expr:
    return pl.col("name").cast(pl.String).str.contains("(?i)pageable").fill_null(value=False)


def _rate(claims: pl.DataFrame) -> dict[str, str]:
    """Words for the rate of the copies."""
    once = claims.unique("activity")
    moved, took_ns = int(once["bytes"].sum()), int(once["duration_ns"].sum())
    return {"rate": f"{moved / took_ns:.1f} GB/s" if moved and took_ns else "an unknown rate"}


def outlier_step(case: Case) -> Iterable[Draft]:
    """Steps much longer than the others, which are alike: what they lost beyond what the others lose to the same cause."""
    spans = case.analysis.window.spans.filter(pl.col("device") == case.analysis.number)
    steps = spans.group_by("number").agg(length_ns=(pl.col("end_ns") - pl.col("start_ns")).sum()).sort("number")
    median = steps["length_ns"].median()
    if not isinstance(median, (int, float)) or not median:
        return
    ratio = case.limits.outlier_ratio
    slow = steps.filter(pl.col("length_ns") > ratio * median)
    typical = steps.filter(pl.col("length_ns").is_between(median / ratio, ratio * median))
    if slow.is_empty() or len(typical) <= MOSTLY * len(steps):
        return
    claims = _excess(case.lost(pl.col("wall") != "unattributed"), steps["number"], slow["number"])
    if case.is_worth_saying(claims):
        worst = slow.sort("length_ns").row(-1, named=True)
        yield Draft(
            claims,
            "high: the steps are measured; medium for the cause, which is what these steps do longer than the median one",
            words=largest(claims)
            | {
                "steps": ", ".join(str(number) for number in slow["number"]),
                "worst": f"{worst['length_ns'] / 1e6:,.4g} ms",
                "median": f"{median / 1e6:,.4g} ms",
                "cause": str(claims.group_by("cause").agg(pl.col("time_ns").sum()).sort("time_ns")["cause"][-1]),
            },
            steps=tuple(slow["number"]),
            evidence=tuple(
                Evidence(
                    kind="step",
                    name=f"step {number}",
                    rank=case.analysis.trace.meta.rank,
                    step=number,
                    duration_ns=length_ns,
                    numbers={"times_the_median": round(length_ns / median, 2)},
                )
                for number, length_ns in slow.iter_rows()
            ),
        )


def _excess(losses: pl.DataFrame, steps: pl.Series, slow: pl.Series) -> pl.DataFrame:
    """Of each cause in the slow steps the part beyond its median over all steps, taken evenly from its rows."""
    cells = losses.group_by("number", "wall", "cause").agg(pl.col("time_ns").sum())
    grid = steps.to_frame("number").join(cells.select("wall", "cause").unique(), how="cross")
    whole = grid.join(cells, on=["number", "wall", "cause"], how="left").with_columns(pl.col("time_ns").fill_null(0))
    usual = whole.group_by("wall", "cause").agg(usual_ns=pl.col("time_ns").median())
    parts = cells.filter(pl.col("number").is_in(slow.implode())).join(usual, on=["wall", "cause"])
    parts = parts.select("number", "wall", "cause", part=(1 - pl.col("usual_ns") / pl.col("time_ns")).clip(0, 1))
    claimed = losses.join(parts.filter(pl.col("part") > 0), on=["number", "wall", "cause"], maintain_order="left")
    return claimed.with_columns(time_ns=pl.col("time_ns") * pl.col("part")).drop("part")


def host_code(case: Case) -> Iterable[Draft]:
    """Idle time in which the host ran code between launches."""
    claims = case.caused("host code")
    if case.is_worth_saying(claims):
        words = largest(claims)
        where = words["name"] if words["name"].startswith("before ") else f"in {words['name']}"
        yield Draft(
            claims,
            "medium: idle while this code ran; what it does inside is not in the trace",
            words=words | {"where": where},
        )
