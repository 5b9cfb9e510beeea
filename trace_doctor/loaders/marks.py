"""Which host ranges are the steps of a training loop (ATTRIBUTION section 2.1)."""

from __future__ import annotations

import re
from typing import NamedTuple

import polars as pl

from trace_doctor.errors import UsageError
from trace_doctor.loaders import periodicity
from trace_doctor.loaders.linking import processes
from trace_doctor.trace import Trace

PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
"""What torch.profiler's `step()` writes around an iteration."""
STEP_WORDS = re.compile(
    r"(?<![A-Za-z])(?i:step|iteration|iter|batch|trainstep|trainingstep)(?![a-z])"  # iteration 3, train_step, [Batch 7]
    r"|(?<=[a-z])(Step|Iteration|Iter|Batch)(?![a-z])"  # runTrainStep
)
NO_STEP = re.compile(r"optimi[sz]er|data_?load", re.IGNORECASE)
_HELD_SHARE = 0.5
"""A step holds the work: a range whose name says batch but that holds fewer of the launches only loads one."""


class Marks(NamedTuple):
    """The host ranges that are steps, and how they were found."""

    rule: str
    frame: pl.DataFrame
    """process, number, start_ns, end_ns and `until_ns`, the start of the next or the end of the last; disjoint and in order
    within a process; no rows: no steps."""


def find(trace: Trace, launched: pl.DataFrame, *, step_range: str | None) -> Marks:
    """The steps' host ranges: those the user names, ProfilerStep#N, a repeating annotation that says step, or the kernels' own
    period.

    `launched` is `steps.launch_times(trace)`. Raises UsageError where `step_range` matches nothing.
    """
    rule, frame = _found(trace, launched, step_range)
    until = pl.col("start_ns").shift(-1).over("process").fill_null(pl.col("end_ns"))
    return Marks(rule, frame.with_columns(until_ns=until))


def _found(trace: Trace, launched: pl.DataFrame, step_range: str | None) -> tuple[str, pl.DataFrame]:
    if step_range is not None:
        return f"ranges that match --step-range {step_range}", _numbered(_asked_for(trace, step_range))
    profiler_steps = _ranges(trace, PROFILER_STEP)
    if len(profiler_steps):
        return "ProfilerStep#N annotations", _numbered(profiler_steps)
    family, repeating = _repeating(trace)
    if len(repeating):
        return f'the repeating annotation "{family}"', repeating
    period = periodicity.find(launched)
    rule = (
        f"period of the kernel sequence, no step marks: {period.kernels} kernels, the optimizer's among them, come "
        f"{period.repeats} times (confidence {period.confidence:.2f})"
    )
    return rule, period.frame


def _ranges(trace: Trace, pattern: re.Pattern[str], *, ops: bool = True) -> pl.DataFrame:
    """Annotations (and ops: old profilers file annotations under them) whose name matches from its start."""
    frames = [trace.annotations.filter(pl.col("kind") == "user")] + ([trace.ops] if ops else [])
    matching = [_matching(frame.select("thread", "start_ns", "duration_ns", "name"), pattern) for frame in frames]
    ranges = next((frame for frame in matching if len(frame)), matching[0])
    return ranges.select(
        "thread",
        "start_ns",
        pl.col("name").cast(pl.String),
        process=processes(trace.meta, ranges["thread"]),
        end_ns=pl.col("start_ns") + pl.col("duration_ns"),
    )


def _matching(frame: pl.DataFrame, pattern: re.Pattern[str]) -> pl.DataFrame:
    distinct = frame["name"].unique().drop_nulls()
    hits = pl.Series([bool(pattern.match(name)) for name in distinct.cast(pl.String)], dtype=pl.Boolean)
    return frame.join(distinct.filter(hits).to_frame("name"), on="name", how="semi", maintain_order="left")


def _asked_for(trace: Trace, step_range: str) -> pl.DataFrame:
    """The ranges whose name begins with `step_range`, or matches it as a regular expression from its start."""
    try:
        pattern = re.compile(f"{re.escape(step_range)}|(?:{step_range})")
    except re.error:
        pattern = re.compile(re.escape(step_range))
    ranges = _ranges(trace, pattern)
    if ranges.is_empty():
        msg = f"no annotation begins with or matches {step_range!r}"
        raise UsageError(msg, where="--step-range", hint=f"take one of: {_most_frequent(trace)}")
    return ranges


def _most_frequent(trace: Trace) -> str:
    names = trace.annotations.filter(pl.col("kind") == "user").get_column("name").cast(pl.String)
    families = names.str.replace_all(r"\d+", "N").value_counts().sort("count", "name", descending=[True, False])
    return ", ".join(families["name"].head(8)) or "(the trace has no annotations)"


def _numbered(ranges: pl.DataFrame) -> pl.DataFrame:
    """One thread's ranges per process, without those inside others, numbered by their names where these count upwards."""
    thread = (
        ranges.group_by("process", "thread")
        .agg(total=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .sort("process", "total", "thread", descending=[False, True, False])
        .unique("process", keep="first", maintain_order=True)
    )
    outer = (
        ranges.join(thread, on=["process", "thread"], how="semi")
        .sort("process", "start_ns", -pl.col("end_ns"))
        .filter((pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1).over("process")).fill_null(value=True))
        .with_columns(said=pl.col("name").str.extract(r"(\d{1,18})\D*$").cast(pl.Int64))
    )
    counts_up = (pl.col("said").is_not_null().all() & (pl.col("said").diff() > 0).all()).over("process")
    return outer.select(
        "process",
        "start_ns",
        "end_ns",
        number=pl.when(counts_up).then("said").otherwise(pl.int_range(1, pl.len() + 1).over("process")),
    )


def _repeating(trace: Trace) -> tuple[str, pl.DataFrame]:
    """The annotation that says step, repeats and holds the launches, as marks; of several the one that lasts longest in all."""
    says_step = re.compile(f"(?=.*(?:{STEP_WORDS.pattern}))(?!.*(?i:{NO_STEP.pattern}))", re.DOTALL)
    ranges = _ranges(trace, says_step, ops=False).with_columns(family=pl.col("name").str.replace_all(r"\d+", "N"))
    launches = trace.calls.filter(pl.col("kind").is_in(["launch", "graph_launch"]))
    launches = launches.select(at_ns="start_ns", process=processes(trace.meta, launches["thread"])).sort("at_ns")
    best, longest = ("", _numbered(ranges.clear())), (0, 0)
    for (family,), members in ranges.group_by("family", maintain_order=True):
        found = _numbered(members)
        # where ranges fill the ones around them, the fewer are the outer ones
        length = found.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item(), -len(found)
        # one in each of several processes repeats too
        if len(found) > 1 and length > longest and _held_share(found, launches) >= _HELD_SHARE:
            best, longest = (str(family), found), length
    return best


def _held_share(found: pl.DataFrame, launches: pl.DataFrame) -> float:
    """Share of what lies between the first mark's start and the last one's end that is inside a mark: launches, else time."""
    hulls = found.group_by("process").agg(first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max())
    between = launches.join(hulls, on="process").filter(
        pl.col("at_ns").is_between("first_ns", "last_ns", closed="left")
    )
    if between.is_empty():
        held = found.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
        whole = hulls.select((pl.col("last_ns") - pl.col("first_ns")).sum()).item()
        return float(held / whole) if whole else 0.0
    marked = found.select("process", "start_ns", "end_ns").sort("start_ns")
    inside = between.sort("at_ns").join_asof(
        marked, left_on="at_ns", right_on="start_ns", by="process", check_sortedness=False
    )
    return float(inside.select((pl.col("at_ns") < pl.col("end_ns")).mean()).item())


def within(events: pl.DataFrame, marked: pl.DataFrame, *, by: str) -> pl.DataFrame:
    """The events (sorted by `at_ns`) inside a mark (`start_ns` to `until_ns`) of the same process or device, with its `number`."""
    intervals = marked.select(by, "number", "start_ns", "until_ns").sort("start_ns")
    placed = events.join_asof(intervals, left_on="at_ns", right_on="start_ns", by=by, check_sortedness=False)
    return placed.filter(pl.col("at_ns") < pl.col("until_ns"))
