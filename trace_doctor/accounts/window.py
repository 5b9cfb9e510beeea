"""The window and its steps; a step that is slow is held against the median step, cause by cause."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from fractions import Fraction

import msgspec
import polars as pl

from trace_doctor.accounts.metrics import step_time
from trace_doctor.classifiers.intervals import share_out
from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.classifiers.timeline import IDLE
from trace_doctor.report import LedgerRow, Step, StepDifference, WindowRow

ENOUGH_STEPS = 3
MANY_STEPS = 256
"""Beyond this a report doesn't carry each row's time in each step."""


def mean_window(analyses: Sequence[Analysis], *, outlier_ratio: float) -> WindowRow:
    """The window with its steps, each as long as its mean over the GPUs; those beyond `outlier_ratio` medians explained."""
    steps = pl.concat([a.window.steps.filter(pl.col("device") == a.number) for a in analyses])
    merged = (
        steps.group_by("number", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            duration_ns=(pl.col("end_ns") - pl.col("start_ns")).mean().round().cast(pl.Int64),
            used=pl.col("used").any(),
            why_not=pl.col("why_not").first(),
        )
        .sort("start_ns", "number")
    )
    listed = [
        Step(number=number, start_ns=start, duration_ns=duration, used=used, why_not=None if used else why)
        for number, start, duration, used, why in merged.iter_rows()
    ]
    durations = pl.Series([step.duration_ns for step in listed if step.used], dtype=pl.Int64)
    starts: list[int] = [start for a in analyses for start in a.spans["start_ns"].to_list()]
    return WindowRow(
        rule=analyses[0].window.rule,
        start_ns=min(starts, default=0),
        duration_ns=round(Fraction(sum(a.account.window_ns for a in analyses), len(analyses))),
        step_time_ns=step_time(durations),
        steps=explained(listed, analyses, outlier_ratio=outlier_ratio),
    )


def explained(steps: Sequence[Step], analyses: Sequence[Analysis], *, outlier_ratio: float) -> list[Step]:
    """The steps, those longer than `outlier_ratio` medians with their ledger against that of the step of median length."""
    used = sorted((step for step in steps if step.used), key=lambda step: (step.duration_ns, step.number))
    if len(used) < ENOUGH_STEPS:
        return list(steps)
    median = used[(len(used) - 1) // 2]
    limit_ns = outlier_ratio * statistics.median(step.duration_ns for step in used)
    slow = [step.number for step in used if step.duration_ns > limit_ns]
    if not slow:
        return list(steps)
    of_gpus = [step_charges(analysis, [median.number, *slow]) for analysis in analyses]
    cells = pl.concat([frame.with_columns(gpu=pl.lit(place)) for place, frame in enumerate(of_gpus)])
    cells = cells.with_columns(pl.col("time_ns") / pl.col("gpu").n_unique().over("number"))
    return [
        msgspec.structs.replace(step, median_step=median.number, differences=_differences(cells, step, median))
        if step.number in slow
        else step
        for step in steps
    ]


def step_charges(analysis: Analysis, numbers: Sequence[int]) -> pl.DataFrame:
    """The charges of some steps of one GPU, summed: number, wall, cause, name, time_ns; each step sums to its length.

    A kernel that a step border cuts is charged to both steps, by the time it held in each.
    """
    return (
        charges_by_step(analysis)
        .filter(pl.col("number").is_in(numbers))
        .with_columns(pl.col("wall", "cause", "name").cast(pl.String))
        .group_by("number", "wall", "cause", "name")
        .agg(pl.col("time_ns").sum())
    )


def with_steps(rows: Sequence[LedgerRow], steps: Sequence[Step], analyses: Sequence[Analysis]) -> list[LedgerRow]:
    """The rows of the mean ledger, each with what it took in every used step (`LedgerRow.per_step_ns`), a mean over the GPUs."""
    used = [step.number for step in steps if step.used]
    if not used or len(used) > MANY_STEPS:
        return list(rows)
    sums = pl.concat(
        [
            charges_by_step(a).group_by("number", "wall", "cause").agg(pl.col("time_ns").sum() / len(analyses))
            for a in analyses
        ]
    ).with_columns(pl.col("wall", "cause").cast(pl.String))
    cells = sums.group_by("number", "wall", "cause").agg(pl.col("time_ns").sum().round().cast(pl.Int64))
    found = {(wall, cause, number): time_ns for number, wall, cause, time_ns in cells.iter_rows()}
    return [
        msgspec.structs.replace(row, per_step_ns=[found.get((row.wall, row.cause, number), 0) for number in used])
        for row in rows
    ]


def charges_by_step(analysis: Analysis) -> pl.DataFrame:
    """Every charge with its step: number, wall, cause, name, time_ns; those of a kernel that a border cuts in parts."""
    pieces = analysis.account.timeline.pieces.select("activity", "number", "exclusive_ns")
    # the pieces of an activity stand side by side
    goes_on = pl.col("activity") == pl.col("activity").shift(-1)
    pieces = pieces.filter((goes_on | goes_on.shift(1)).fill_null(value=False))
    whole, parts = pl.col("exclusive_ns").sum().over("activity"), pl.len().over("activity")
    cut = pieces.select(
        "activity", at="number", share=pl.when(whole > 0).then(pl.col("exclusive_ns") / whole).otherwise(1 / parts)
    )
    columns = ["number", "wall", "cause", "name", "time_ns"]
    charges = analysis.account.charges.select("class", "activity", *columns)
    if cut.is_empty():
        return charges.select(columns)
    is_cut = charges["activity"].is_in(cut["activity"].implode()).fill_null(value=False) & (charges["class"] != IDLE)
    divided = charges.filter(is_cut).drop("number").join(cut.rename({"at": "number"}), on="activity")
    divided = divided.with_columns(pl.col("time_ns") * pl.col("share"))
    return pl.concat([charges.filter(~is_cut).select(columns), divided.select(columns)])


def _differences(cells: pl.DataFrame, slow: Step, median: Step) -> list[StepDifference]:
    """The rows of the slow step and of the median step side by side, in ns that sum to both durations."""
    here = pl.col("time_ns").filter(pl.col("number") == slow.number).sum()
    usual = pl.col("time_ns").filter(pl.col("number") == median.number).sum()
    by_name = cells.group_by("wall", "cause", "name").agg(here=here, usual=usual)
    most = (pl.col("here") - pl.col("usual")).abs()
    rows = (
        by_name.group_by("wall", "cause")
        .agg(pl.col("here").sum(), pl.col("usual").sum(), pl.col("name").sort_by(most, "name").drop_nulls().last())
        .sort("wall", "cause")
    )
    rows = rows.with_columns(
        here=share_out(rows.select("here"), slow.duration_ns), usual=share_out(rows.select("usual"), median.duration_ns)
    ).filter(pl.col("here") != pl.col("usual"))
    ranked = rows.sort((pl.col("here") - pl.col("usual")).abs(), "wall", "cause", descending=[True, False, False])
    return [
        StepDifference(wall=wall, cause=cause, time_ns=here, median_ns=usual, name=name)
        for wall, cause, here, usual, name in ranked.select("wall", "cause", "here", "usual", "name").iter_rows()
    ]
