"""Launches whose kernels the profiler did not record: where they are many, idle time can't be believed."""

from __future__ import annotations

import re

import polars as pl

from trace_doctor.loaders import marks
from trace_doctor.loaders.linking import processes
from trace_doctor.trace import Trace, Warning

PARTIAL_SHARE = 0.01
"""More than this share of a step's launches without kernel: idle is partly kernels that were not recorded."""
POOR_SHARE = 0.2
KERNEL_LAUNCHES = ["launch", "graph_launch"]


def launches(trace: Trace) -> pl.DataFrame:
    """The kernel launches: process, at_ns, kind, and `is_lost` where nothing that they launched was recorded.

    Copies and sets of zero bytes leave no record, so they don't count, nor do launches while a graph is captured: these run
    at replay. A graph launch counts as recorded once one of its nodes is.
    """
    calls = trace.calls.with_columns(process=processes(trace.meta, trace.calls["thread"]))
    recorded = trace.activities["call"].drop_nulls().unique()
    return (
        calls.filter(~_is_captured(calls))
        .filter(pl.col("kind").is_in(KERNEL_LAUNCHES) & (pl.col("correlation") > 0))
        .select("process", "kind", at_ns="start_ns", is_lost=~pl.col("call").is_in(recorded.implode()))
        .sort("at_ns")
    )


def _is_captured(calls: pl.DataFrame) -> pl.Series:
    """Whether a call falls between cudaStreamBeginCapture and cudaStreamEndCapture of its process."""
    names = calls["name"].unique().drop_nulls()
    found = [(name, re.search("Stream(Begin|End)Capture", name)) for name in names.cast(pl.String)]
    turns = {name: 1 if match[1] == "Begin" else -1 for name, match in found if match}
    turn = pl.col("name").cast(pl.String).replace_strict(turns, default=0, return_dtype=pl.Int32)
    return calls.select(turn.cum_sum().over("process", order_by="start_ns") > 0).to_series()


def per_mark(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    """For every host mark: process, number, how many launches there were, how many were `lost`, and the worst `lost_share`."""
    placed = marks.within(launches(trace), found, by="process")
    return _shares(placed, ["process", "number"])


def whole(trace: Trace) -> pl.DataFrame:
    """The same for the whole trace, from the first to the last launch whose kernel was recorded."""
    every = launches(trace)
    recorded = every.filter(~pl.col("is_lost"))["at_ns"]
    between = every.filter(pl.col("at_ns").is_between(recorded.min(), recorded.max()))
    return _shares(between, ["process"]).with_columns(used=pl.lit(value=True), number=pl.lit(None, pl.Int64))


def _shares(placed: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Sums per key. A graph launch stands for many kernels: the share is that of the kind that lost more."""
    kinds = placed.group_by(*keys, "kind").agg(made=pl.len(), lost=pl.col("is_lost").sum())
    return kinds.group_by(keys).agg(
        pl.col("made").sum(), pl.col("lost").sum(), lost_share=(pl.col("lost") / pl.col("made")).max()
    )


def judge(steps: pl.DataFrame) -> tuple[str, tuple[str, ...]]:
    """How far idle can be believed ("good", "partial", "poor") and why not, from the steps with their losses."""
    lossy = steps.filter(pl.col("lost_share").fill_null(0) > PARTIAL_SHARE).unique(
        ["process", "number"], maintain_order=True
    )
    if lossy.is_empty():
        return "good", ()
    used = lossy.filter("used")
    lost, made, numbers = lossy["lost"].sum(), lossy["made"].sum(), lossy["number"].drop_nulls().to_list()
    where = f" in step {', '.join(map(str, numbers))}" if numbers else ""
    why = f"{lost} of {made} launches{where} left no kernel in the file: the GPU worked there where it seems idle"
    return "poor" if (used["lost_share"] > POOR_SHARE).any() else "partial", (why,)


def warnings(why: tuple[str, ...]) -> tuple[Warning, ...]:
    """The same as warnings."""
    return tuple(Warning("kernels-lost", text) for text in why)
