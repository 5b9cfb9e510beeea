"""The window and its steps (ATTRIBUTION section 2)."""

from __future__ import annotations

import re

import polars as pl

from trace_doctor.errors import UsageError
from trace_doctor.loaders import losses, marks, startup
from trace_doctor.options import Options
from trace_doctor.trace import Meta, Trace, Warning, Window

BEFORE_ALL_NS = -(2**63)
"""Launch time of what was enqueued before the recording began."""
DRIFT_SHARE = 0.15
"""The lag between mark and border drifts when it changes by more than this share of a step, on average, from one step to the next."""
COMPUTE = ["compute", "graph"]
_NO_STEPS = pl.DataFrame(
    schema={
        "device": pl.UInt16,
        "number": pl.Int64,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "used": pl.Boolean,
        "why_not": pl.String,
    }
)


def find(trace: Trace, options: Options) -> Window:
    """The time that is accounted for, per device, and the steps in it.

    Host times alone are no borders, for the host runs ahead of the GPU: a step begins when its mark has been passed and the
    GPU has finished what was launched before (`borders`). Without steps the window is the hull of the device's activity.
    Raises UsageError where the options name steps or ranges that are not there.
    """
    launched = launch_times(trace)
    if options.whole_trace:
        return _hull(trace, launched, "the whole trace: first to last GPU activity", options)
    found = marks.find(trace, launched, step_range=options.step_range)
    if found.frame.is_empty():
        return _unmarked(trace, launched, "no step marks", options)
    laid = borders(launched, per_device(found.frame, launched))
    lost = losses.per_mark(trace, found.frame)
    steps = _chosen(laid.join(lost, on=["process", "number"], how="left", maintain_order="left"), options)
    if not steps["used"].any():
        return _unmarked(trace, launched, "no step marks that hold GPU work", options)
    trust, why = losses.judge(steps)
    used = steps.filter("used")
    return Window(
        rule=found.rule,
        steps=steps.select(_NO_STEPS.columns),
        spans=used.select("device", "number", "start_ns", "end_ns"),
        warnings=(*_one_step(used), *_drift(used, trace.meta), *losses.warnings(why)),
        trust=trust,
        why=why,
    )


def launch_times(trace: Trace) -> pl.DataFrame:
    """The activities with `end_ns` and `launched_ns`, when the host enqueued them.

    One without a launch record takes, in the order of its stream, the launch time of the linked one before it; with none
    before it, a time before everything; on a stream without any linked activity, its own start.
    """
    activities = trace.activities.with_columns(
        end_ns=pl.col("start_ns") + pl.col("duration_ns"),
        launched_ns=trace.calls["start_ns"].gather(trace.activities["call"]),
    )
    if not activities["launched_ns"].null_count():
        return activities
    queue = ["device", "stream"]
    return (
        activities.with_columns(
            _linked=pl.col("launched_ns").is_not_null().any().over(queue),
            launched_ns=pl.col("launched_ns").forward_fill().over(queue, order_by="start_ns"),
        )
        .with_columns(
            pl.col("launched_ns").fill_null(
                pl.when("_linked").then(pl.lit(BEFORE_ALL_NS)).otherwise(pl.col("start_ns"))
            )
        )
        .drop("_linked")
    )


def per_device(found: pl.DataFrame, launched: pl.DataFrame) -> pl.DataFrame:
    """The marks of each device: those of its process; of the process with most marks where its own has none.

    Gives the columns of `marks.Marks.frame` and device.
    """
    most = found.group_by("process").len().sort("len", "process", descending=[True, False])["process"][0]
    devices = (
        launched.group_by("device")
        .agg(process=pl.col("process").drop_nulls().mode(maintain_order=True).first())
        .with_columns(
            process=pl.when(pl.col("process").is_in(found["process"].unique().implode()))
            .then("process")
            .otherwise(pl.lit(most, pl.UInt16))
        )
    )
    return devices.join(found, on="process").sort("device", "start_ns")


def borders(launched: pl.DataFrame, marked: pl.DataFrame) -> pl.DataFrame:
    """Where each step begins and ends on the GPU, and how many activities it `launched`.

    border(N) = max(host mark of N, latest end of the compute activities launched before it), made monotonic: ATTRIBUTION
    section 2.2. A copy or a collective left over on another stream moves no border.
    """
    finished = (
        launched.filter(pl.col("kind").is_in(COMPUTE))
        .sort("launched_ns")
        .select("device", "launched_ns", finished_ns=pl.col("end_ns").cum_max().over("device"))
    )
    begun = (
        marked.sort("start_ns")
        .join_asof(
            finished,
            left_on="start_ns",
            right_on="launched_ns",
            by="device",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .sort("device", "start_ns")
        .with_columns(border_ns=pl.max_horizontal("start_ns", "finished_ns").cum_max().over("device"))
    )
    closed = begun.join(_closing(launched, begun), on="device", how="left", maintain_order="left")
    ends = pl.col("border_ns").shift(-1).over("device").fill_null(pl.col("closing_ns"))
    return closed.join(_counts(launched, marked), on=["device", "number"], how="left", maintain_order="left").select(
        "device",
        "process",
        "number",
        start_ns="border_ns",
        end_ns=ends,
        mark_ns="start_ns",
        launched=pl.col("launched").fill_null(0),
    )


def _closing(launched: pl.DataFrame, begun: pl.DataFrame) -> pl.DataFrame:
    """The border that closes the last step: the later of its mark's end and the end of the last compute launched inside a step.

    After a cold start, where nothing launched before the first mark runs past the first border, every activity counts, so
    that a trailing collective is seen: no such one is left over from before the window.
    """
    marked = begun.group_by("device").agg(
        first_mark_ns=pl.col("start_ns").first(),
        first_border_ns=pl.col("border_ns").first(),
        last_border_ns=pl.col("border_ns").last(),
        last_mark_ns=pl.col("end_ns").last(),
    )
    is_before = pl.col("launched_ns") < pl.col("first_mark_ns")
    is_inside = ~is_before & (pl.col("launched_ns") < pl.col("last_mark_ns"))
    is_cold = ~(is_before & (pl.col("end_ns") > pl.col("first_border_ns"))).any()
    is_compute = pl.col("kind").is_in(COMPUTE)
    ends = (
        launched.select("device", "kind", "launched_ns", "end_ns")
        .join(marked, on="device")
        .group_by("device")
        .agg(last_end_ns=pl.col("end_ns").filter(is_inside & (is_compute | is_cold)).max())
    )
    return marked.join(ends, on="device", how="left").select(
        "device", closing_ns=pl.max_horizontal("last_mark_ns", "last_border_ns", "last_end_ns")
    )


def _counts(launched: pl.DataFrame, marked: pl.DataFrame) -> pl.DataFrame:
    """How many activities each step launched on each device: device, number, launched."""
    placed = marks.within(launched.select("device", at_ns="launched_ns").sort("at_ns"), marked, by="device")
    return placed.group_by("device", "number").agg(launched=pl.len())


def _chosen(steps: pl.DataFrame, options: Options) -> pl.DataFrame:
    """The steps with `used` and `why_not`: as --steps says, else all but the empty ones and a first one that is a warm-up."""
    if options.steps is not None:
        asked = _parse(options.steps, sorted(steps["number"].unique()))
        reasons: list[pl.Expr] = [
            pl.when(~pl.col("number").is_in(asked)).then(pl.lit(f"not among --steps {options.steps}"))
        ]
    else:
        reasons = [_is_empty()] if options.all_steps else [_is_empty(), _is_warm_up(options.thresholds.outlier_ratio)]
    return steps.with_columns(why_not=pl.coalesce(reasons)).with_columns(used=pl.col("why_not").is_null())


def _is_empty() -> pl.Expr:
    lost = pl.format("its {} launches left no kernel in the file", "lost")
    reason = pl.when(pl.col("lost") > 0).then(lost).otherwise(pl.lit("launched nothing on this GPU"))
    return pl.when(pl.col("launched") == 0).then(reason)


def _is_warm_up(outlier_ratio: float) -> pl.Expr:
    """The first step with work, of three or more, that lasts longer than `outlier_ratio` medians (mean over a process's GPUs)."""
    has_work = pl.col("launched") > 0
    duration = pl.when(has_work).then((pl.col("end_ns") - pl.col("start_ns")).mean().over("process", "number"))
    recorded = pl.col("number").filter(has_work)
    is_first = (pl.col("number") == recorded.min()).over("process") & (recorded.n_unique() >= 3).over("process")
    ratio = duration / duration.median().over("process")
    return pl.when(is_first & (ratio > outlier_ratio)).then(
        pl.format("first step, {} x the median: warm-up", ratio.round(2).cast(pl.String))
    )


def _parse(text: str, there_are: list[int]) -> list[int]:
    """The steps that "2-4" or "3,5" names, all of them among those there are."""
    wanted: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", part)
        if not match:
            msg = f"{part!r} is no step number and no range of them"
            raise UsageError(msg, where="--steps", hint="write them as 2-4 or 3,5")
        first, last = int(match[1]), int(match[2] or match[1])
        unknown = [number for number in sorted({first, last}) if number not in there_are]
        if unknown or first > last:
            msg = f"the trace has no step {', '.join(map(str, unknown)) or part.strip()}"
            raise UsageError(msg, where="--steps", hint=f"take from: {_listed(there_are)}")
        wanted.update(number for number in there_are if first <= number <= last)
    return sorted(wanted)


def _listed(numbers: list[int]) -> str:
    """3, 4, 5 of a few, 3, 4, ..., 99 of many."""
    few = numbers if len(numbers) <= 12 else [*numbers[:2], "...", numbers[-1]]
    return ", ".join(map(str, few))


def _unmarked(trace: Trace, launched: pl.DataFrame, rule: str, options: Options) -> Window:
    """A window without steps, that begins after the broadcast of the parameters where every device shows one."""
    begun = startup.ends(launched)
    if len(begun) < launched["device"].n_unique():
        return _hull(trace, launched, f"{rule}: first to last GPU activity", options)
    count = begun.select(pl.col("broadcasts").max()).item()
    rule = f"{rule}: from the end of the parameters' broadcast ({count} collectives) to the last GPU activity"
    after = launched.join(begun, on="device", maintain_order="left").with_columns(start_ns="started_ns")
    return _hull(trace, after, rule, options)


def _hull(trace: Trace, launched: pl.DataFrame, rule: str, options: Options) -> Window:
    """A window without steps: from the first start to the last end of each device."""
    if options.steps is not None:
        msg = f"no steps to choose from: {rule}"
        hint = (
            "leave --whole-trace out" if options.whole_trace else "name the annotation that is a step with --step-range"
        )
        raise UsageError(msg, where="--steps", hint=hint)
    spans = (
        launched.group_by("device")
        .agg(number=pl.lit(None, pl.Int64), start_ns=pl.col("start_ns").min(), end_ns=pl.col("end_ns").max())
        .sort("device")
    )
    trust, why = losses.judge(losses.whole(trace))
    start_up = Warning("no-steps", f"{rule}; start-up and warm-up may be in it, and there is no time per step")
    return Window(
        rule=rule, steps=_NO_STEPS, spans=spans, warnings=(start_up, *losses.warnings(why)), trust=trust, why=why
    )


def _one_step(used: pl.DataFrame) -> tuple[Warning, ...]:
    if used["number"].n_unique() > 1:
        return ()
    number = used["number"][0]
    return (Warning("one-step", f"only one step (#{number}) is accounted for: its spread is unknown"),)


def _drift(used: pl.DataFrame, meta: Meta) -> tuple[Warning, ...]:
    """Warns where the GPU falls behind the host, or catches up, over the steps: they don't last what the loop lasts."""
    lags = used.group_by("device", maintain_order=True).agg(
        drift=(pl.col("start_ns") - pl.col("mark_ns")).last() - (pl.col("start_ns") - pl.col("mark_ns")).first(),
        step=(pl.col("end_ns") - pl.col("start_ns")).median(),
        count=pl.len(),
    )
    drifting = lags.filter(pl.col("drift").abs() > DRIFT_SHARE * pl.col("step") * (pl.col("count") - 1))
    if drifting.is_empty():
        return ()
    device, drift = drifting.select("device", "drift").row(0)
    way = "grows" if drift > 0 else "shrinks"
    lag = f"the lag of GPU {meta.devices[device].label} behind the host {way} by {abs(drift) / 1e6:.3g} ms"
    text = f"{lag} over the steps used: steps on the GPU and steps of the host differ in length"
    return (Warning("lag-drift", text),)
