"""Gaps: why the GPU had nothing to do (ATTRIBUTION section 5).

::

    GPU        ...kernel|------------------ gap ------------------|K...
                        g0                                        g1
    host        what it did        |---launch call---|  waiting
                                   l0                l1
    charge     |--- host table ----|-- launch-bound--|- device gap -|
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources

import polars as pl

from trace_doctor.classifiers import charges
from trace_doctor.classifiers.charges import Row
from trace_doctor.classifiers.intervals import cut, edges, top_class, union
from trace_doctor.loaders.linking import processes
from trace_doctor.loaders.nesting import nest
from trace_doctor.loaders.sparing import in_order, keep
from trace_doctor.options import Thresholds
from trace_doctor.trace import Trace
from trace_doctor.work.ancestors import at

QUEUE_BACK_PRESSURE = "Command Buffer Full"
"""Overhead of this name lies inside launch calls: the queue was full, the profiler did nothing."""
RANGE = ("thread", "start_ns", "duration_ns", "name")
BETWEEN_RANGES = "(between recorded ranges)"
EVER = pl.lit(value=True)
DISPATCHER_OP = r"^\w[\w.]*::"


@cache
def named_causes() -> tuple[tuple[Row, str], ...]:
    """Causes that a host range may name, with one regex each, in the order in which they win."""
    text = resources.files("trace_doctor.classifiers").joinpath("host.toml").read_text(encoding="utf-8")
    return tuple(
        (Row(entry["wall"], entry["cause"], "measured"), "(?i)^(?:" + "|".join(entry["patterns"]) + ")$")
        for entry in tomllib.loads(text)["cause"]
    )


def states() -> tuple[Row, ...]:
    """What the host can be doing, in the order in which the first match wins; the position is a segment's `state`."""
    named = tuple(row for row, _ in named_causes())
    before = (charges.ALLOCATOR, charges.INITIALISATION, charges.PROFILER)
    return (*before, *named, charges.LAUNCH_BOUND, charges.HOST_CODE, charges.NO_HOST_EVENTS)


def explain_gaps(
    gaps: pl.DataFrame, trace: Trace, activities: pl.DataFrame, pieces: pl.DataFrame, *, thresholds: Thresholds
) -> pl.DataFrame:
    """Charge every nanosecond of one GPU's `gaps` (start_ns, end_ns).

    `activities`: all of this GPU's; `pieces`: those inside the window, as the sweep cut them.
    Returns disjoint segments: start_ns, end_ns, wall, cause, basis, name (kernel, range or call), op_name,
    activity (the one that ends the gap).
    """
    launches = device_launches(trace, activities)
    ended = _ending_kernels(gaps, trace, activities, launches)
    around = _around_the_launch(ended, thresholds)
    before = ended.select(
        "launcher",
        "launcher_before",
        "name",
        "op_name",
        "activity",
        start_ns="g0",
        end_ns=pl.when("is_launched").then("g0").otherwise(pl.min_horizontal("l0", "g1")),
    ).filter(pl.col("start_ns") < pl.col("end_ns"))
    host = _host_segments(before, trace, launches, thresholds)
    paid = _pay_debt(host, waits(trace, launches, pieces))
    return pl.concat([around, paid]).sort("start_ns")


def device_launches(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """The calls that launched this GPU's activities, in order: call, start_ns, end_ns, thread, the thread of the one before."""
    launched = activities.select("call", first_ns="start_ns").drop_nulls("call")
    launched = in_order(in_order(launched, "first_ns"), "call")
    launched = keep(launched, (pl.col("call") != pl.col("call").shift(1)).fill_null(value=True))
    calls = trace.calls.select("start_ns", "duration_ns", "thread", "kind")[launched["call"]]
    return in_order(launched.hstack(calls), "start_ns").with_columns(
        end_ns=pl.col("start_ns") + pl.col("duration_ns"), thread_before=pl.col("thread").shift(1)
    )


def _ending_kernels(gaps: pl.DataFrame, trace: Trace, activities: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Each gap with the activity K that ends it and K's launch: g0, g1, l0, l1, is_launched (before g0), and the thread
    that launches, with that of the launch before: launcher, launcher_before."""
    launch = _places(launches["call"], activities["call"], most=len(trace.calls))
    ending = _first_starting(activities["start_ns"], at(launches["start_ns"], launch), gaps["end_ns"])
    launch = at(launch, ending)
    # a tail gap, which nothing ends, has the last launching threads
    before = launches["start_ns"].search_sorted(gaps["end_ns"], side="right").cast(pl.Int64) - 1
    threads = launch.zip_with(launch.is_not_null(), before.set(before < 0, None).cast(pl.UInt32))
    g0, kind = gaps["start_ns"], at(launches["kind"], launch)
    graph_runs = (kind == "graph_launch") & (at(launches["first_ns"], launch) < g0)
    thread, l1 = at(launches["thread"], threads), at(launches["end_ns"], launch)
    return gaps.select(
        at(activities["name"], ending),
        at(activities["op_name"], ending),
        at(activities["activity"], ending),
        g0="start_ns",
        g1="end_ns",
        l0=at(launches["start_ns"], launch),
        l1=l1,
        is_launched=ending.is_not_null() & (l1.is_null() | (l1 <= g0) | graph_runs.fill_null(value=False)),
        launcher=thread,
        launcher_before=at(launches["thread_before"], threads),
    ).with_columns(
        l0=pl.coalesce("l0", "g1"),
        l1=pl.coalesce("l1", "g1"),
        launcher_before=pl.coalesce("launcher_before", "launcher"),
    )


def _places(keys: pl.Series, wanted: pl.Series, *, most: int) -> pl.Series:
    """The row in which each of the wanted numbers, below `most`, stands in `keys`; null for none."""
    rows = pl.int_range(len(keys), dtype=pl.UInt32, eager=True)
    nowhere = pl.Series([None], dtype=pl.UInt32).new_from_index(0, most)
    return at(nowhere.scatter(keys, rows), wanted)


def _first_starting(starts_ns: pl.Series, launched_ns: pl.Series, at_ns: pl.Series) -> pl.Series:
    """The row that starts at each time, of several the one launched first (null: before the recording); null for none."""
    starts = pl.DataFrame({"start_ns": starts_ns, "launched_ns": launched_ns}).with_row_index("row")
    if not (starts_ns.diff(null_behavior="drop") > 0).all():
        starts = starts.sort("start_ns", "launched_ns", nulls_last=False, maintain_order=True)
    found = starts.select("row", "start_ns")[starts["start_ns"].search_sorted(at_ns).clip(0, len(starts) - 1)]
    return found.select(pl.when(pl.col("start_ns") == at_ns).then("row")).to_series()


def _around_the_launch(ended: pl.DataFrame, thresholds: Thresholds) -> pl.DataFrame:
    """The parts of the gaps inside K's launch call and after it."""
    g0, g1, l0 = pl.col("g0"), pl.col("g1"), pl.col("l0")
    l1 = pl.when("is_launched").then(g0).otherwise("l1")
    late = pl.max_horizontal(g0, l1)
    blocked = l0 + thresholds.blocked_call_ns
    soon = pl.min_horizontal(g1, late + thresholds.device_gap_ns)
    launched, running = pl.col("is_launched"), ~pl.col("is_launched")
    parts = [
        (running, charges.LAUNCH_BOUND, pl.max_horizontal(g0, l0), pl.min_horizontal(l1, g1, blocked)),
        (running, charges.BLOCKED_CALL, pl.max_horizontal(g0, blocked), pl.min_horizontal(l1, g1)),
        (running, charges.LAUNCH_BOUND, late, soon),
        (launched, charges.DEVICE_GAP, late, soon),
        (EVER, charges.NOT_STARTED, late + thresholds.device_gap_ns, g1),
    ]
    return pl.concat([_segments(ended, row, start, end, when=when) for when, row, start, end in parts])


def _segments(frame: pl.DataFrame, row: Row, start: pl.Expr, end: pl.Expr, *, when: pl.Expr = EVER) -> pl.DataFrame:
    charged = frame.lazy().filter(when & (start < end))
    return charged.select(
        "name",
        "op_name",
        "activity",
        start_ns=start,
        end_ns=end,
        wall=pl.lit(row.wall, pl.Categorical),
        cause=pl.lit(row.cause, pl.Categorical),
        basis=pl.lit(row.basis, pl.Categorical),
    ).collect()


def _host_segments(before: pl.DataFrame, trace: Trace, launches: pl.DataFrame, thresholds: Thresholds) -> pl.DataFrame:
    """The time before each launch, split at the borders of what the host did: start_ns, end_ns, state, name, op_name."""
    rows = states()
    base = before.select(
        "start_ns",
        "end_ns",
        pl.when(pl.any_horizontal(pl.col("launcher", "launcher_before").is_not_null()))
        .then(rows.index(charges.HOST_CODE))
        .otherwise(rows.index(charges.NO_HOST_EVENTS))
        .cast(pl.Int32)
        .alias("class"),
    )
    doing = _host_states(trace, launches, thresholds)
    thread = pl.col("thread")
    inside = cut(doing, before, keep=["launcher", "launcher_before"]).filter(
        thread.is_null() | (thread == pl.col("launcher")) | (thread == pl.col("launcher_before"))
    )
    grid = edges(pl.concat([base, inside.select("start_ns", "end_ns", "class")]), len(rows))
    split = (
        grid.with_columns(state=top_class(len(rows)), end_ns=pl.col("at_ns") + pl.col("length_ns"))
        .filter((pl.col("state") < len(rows)) & (pl.col("length_ns") > 0))
        .select("state", "end_ns", start_ns="at_ns")
        .with_columns(
            _new=((pl.col("state") != pl.col("state").shift(1)) | (pl.col("start_ns") != pl.col("end_ns").shift(1)))
            .fill_null(value=True)
            .cum_sum()
        )
        .group_by("_new", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").last(), pl.col("state").first())
        .drop("_new")
    )
    # one gap's end may touch the next one's start only through an activity, so the cut is never ambiguous
    split = cut(split, before, keep=["launcher", "name", "op_name", "activity"])
    return _name_states(split, doing, trace)


def _host_states(trace: Trace, launches: pl.DataFrame, thresholds: Thresholds) -> pl.DataFrame:
    """What the launching threads did: thread (null: every thread), start_ns, end_ns, class (position in states()), name."""
    rows = states()
    threads = launches["thread"].unique().to_list()
    first_launch_ns = pl.lit(launches["start_ns"].min(), pl.Int64)
    is_allocation = pl.col("kind").is_in(["malloc", "free"]) & pl.col("thread").is_in(threads)
    allocations = trace.calls.select(*RANGE, "kind").filter(is_allocation)
    is_start = (pl.col("duration_ns") >= thresholds.initialisation_ns) | (pl.col("start_ns") < first_launch_ns)
    own = trace.annotations.filter((pl.col("kind") == "user") & pl.col("thread").is_in(threads))
    ranges = keep(trace.ops.select(RANGE), pl.col("thread").is_in(threads))
    parts = [
        _ranges(
            allocations,
            pl.when(is_start).then(rows.index(charges.INITIALISATION)).otherwise(rows.index(charges.ALLOCATOR)),
        ),
        _ranges(_profilers(trace, threads), pl.lit(rows.index(charges.PROFILER))),
        _ranges(_matching(own), pl.col("class")),
        _ranges(_matching(ranges), pl.col("class")),
        _busy_launching(launches, thresholds),
    ]
    return pl.concat(parts).sort("start_ns")


def _profilers(trace: Trace, threads: Sequence[int]) -> pl.DataFrame:
    """The profiler's own work on any thread, but for that in other processes that have calls of their own."""
    own = [trace.meta.threads[thread].process for thread in threads if thread is not None]
    others = set(processes(trace.meta, trace.calls["thread"].unique())) - set(own)
    elsewhere = [number for number, thread in enumerate(trace.meta.threads) if thread.process in others]
    is_overhead = (pl.col("kind") == "overhead") & (pl.col("name") != QUEUE_BACK_PRESSURE)
    found = trace.annotations.filter(is_overhead & ~pl.col("thread").is_in(elsewhere))
    return found.with_columns(thread=pl.lit(None, pl.UInt32))


def _ranges(frame: pl.DataFrame, state: pl.Expr) -> pl.DataFrame:
    return frame.select(
        "thread",
        "start_ns",
        end_ns=pl.col("start_ns") + pl.col("duration_ns"),
        name="name",
        **{"class": state.cast(pl.Int32)},
    )


def _matching(frame: pl.DataFrame) -> pl.DataFrame:
    """The ranges whose name is a named cause, with its `class`."""
    names = frame.select(pl.col("name").unique()).with_columns(text=pl.col("name").cast(pl.String))
    names = names.filter(~pl.col("text").str.contains(DISPATCHER_OP)).with_columns(
        pl.lit(None, pl.Int32).alias("class")
    )
    for row, pattern in named_causes():
        hit = pl.col("class").is_null() & pl.col("text").str.contains(pattern)
        names = names.with_columns(
            pl.when(hit).then(states().index(row)).otherwise("class").cast(pl.Int32).alias("class")
        )
    found = names.filter(pl.col("class").is_not_null()).drop("text")
    return frame.filter(pl.col("name").is_in(found["name"].implode())).join(found, on="name")


def _busy_launching(launches: pl.DataFrame, thresholds: Thresholds) -> pl.DataFrame:
    """From each launch to the next one that follows soon: the host was busy launching."""
    following = pl.col("start_ns").shift(-1)
    return (
        launches.with_columns(end_ns=following)
        .filter((pl.col("end_ns") - pl.col("start_ns")) < thresholds.launch_spacing_ns)
        .select(
            pl.lit(None, pl.UInt32).alias("thread"),
            "start_ns",
            "end_ns",
            pl.lit(None, pl.Categorical).alias("name"),
            pl.lit(states().index(charges.LAUNCH_BOUND), pl.Int32).alias("class"),
        )
    )


def _name_states(split: pl.DataFrame, doing: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Names: the range or call of a named state; the innermost range of host code; else the kernel that was awaited."""
    rows = states()
    source = doing.filter(pl.col("name").is_not_null()).select(state="class", at_ns="start_ns", range_name="name")
    named = split.sort("start_ns").join_asof(
        source.sort("at_ns"), left_on="start_ns", right_on="at_ns", by="state", check_sortedness=False
    )
    named = named.with_columns(innermost=_innermost(named, trace, rows.index(charges.HOST_CODE)))
    return named.select(
        "start_ns",
        "end_ns",
        "state",
        "activity",
        name=pl.when(pl.col("state") < rows.index(charges.LAUNCH_BOUND))
        .then("range_name")
        .when(pl.col("state") == rows.index(charges.HOST_CODE))
        .then(pl.coalesce("innermost", pl.lit(BETWEEN_RANGES, pl.Categorical)))
        .otherwise("name"),
        op_name=pl.when(pl.col("state") == rows.index(charges.LAUNCH_BOUND)).then("op_name"),
    )


def _innermost(split: pl.DataFrame, trace: Trace, host_code: int) -> pl.Series:
    """The innermost host range (op, annotation or Python frame) in the middle of each stretch of host code."""
    middle = pl.col("start_ns") + (pl.col("end_ns") - pl.col("start_ns")) // 2
    points = split.with_row_index("row").filter(pl.col("state") == host_code)
    points = points.select("row", thread="launcher", start_ns=middle, duration_ns=pl.lit(0, pl.Int64))
    own = trace.annotations.filter(pl.col("kind") != "overhead")
    is_asked = pl.col("thread").is_in(points["thread"].unique().to_list())
    ranges = pl.concat([keep(frame.select(RANGE), is_asked) for frame in (trace.ops, own)])
    _, around = nest(ranges, points)
    found = pl.DataFrame({"row": points["row"], "name": ranges["name"].gather(around)})
    return split.with_row_index("row").select("row").join(found, on="row", how="left", maintain_order="left")["name"]


def waits(trace: Trace, launches: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """When the launching threads waited while this GPU was busy: start_ns, end_ns (disjoint), name and op of the wait."""
    threads = launches["thread"].unique().to_list()
    calls = trace.calls.select(
        "thread", "start_ns", "name", "op", "kind", end_ns=pl.col("start_ns") + pl.col("duration_ns")
    )
    syncs = calls.filter(pl.col("kind") == "synchronisation")
    copied = pieces.select("kind", "call", end_ns=pl.col("start_ns") + pl.col("duration_ns")).filter(
        (pl.col("kind") == "copy") & pl.col("call").is_not_null()
    )
    copied = copied.group_by("call").agg(copied_ns=pl.col("end_ns").max()).sort("call")
    blocking = calls[copied["call"]].filter(copied["copied_ns"] <= pl.col("end_ns"))
    columns = ["start_ns", "end_ns", "name", "op"]
    both = pl.concat([syncs, blocking]).filter(pl.col("thread").is_in(threads)).select(columns).sort("start_ns")
    evidence = both.select(
        at_ns="start_ns",
        wait="name",
        wait_op=trace.ops["name"].gather(both["op"]),
    )
    waited = cut(union(both), union(pieces))
    return waited.sort("start_ns").join_asof(evidence, left_on="start_ns", right_on="at_ns").drop("at_ns")


def _pay_debt(host: pl.DataFrame, waited: pl.DataFrame) -> pl.DataFrame:
    """Charges host-late idle time to synchronisation until the debt of earlier waits is paid (the debt rule).

    With X the running sum of waits minus idle time, the debt is X minus its running minimum; what lowers that minimum was not paid.
    """
    rows = states()
    pays = pl.col("state").is_in([rows.index(charges.LAUNCH_BOUND), rows.index(charges.HOST_CODE)])
    host = host.with_row_index("segment")
    ledger = (
        pl.concat(
            [
                waited.select(
                    "start_ns", amount=pl.col("end_ns") - pl.col("start_ns"), segment=pl.lit(None, pl.UInt32)
                ),
                host.filter(pays).select("start_ns", amount=pl.col("start_ns") - pl.col("end_ns"), segment="segment"),
            ]
        )
        .sort("start_ns")
        .with_columns(unpaid=(-pl.col("amount").cum_sum().cum_min()).clip(lower_bound=0))
        .with_columns(unpaid=pl.col("unpaid") - pl.col("unpaid").shift(1, fill_value=0))
        .filter(pl.col("segment").is_not_null())
        .select("segment", paid=-pl.col("amount") - pl.col("unpaid"))
    )
    split = host.join(ledger, on="segment", how="left", maintain_order="left").with_columns(
        middle_ns=pl.col("start_ns") + pl.col("paid").fill_null(0)
    )
    rest = split.with_columns(start_ns="middle_ns").filter(pl.col("start_ns") < pl.col("end_ns"))
    paid = split.with_columns(end_ns="middle_ns").filter(pl.col("start_ns") < pl.col("end_ns"))
    evidence = waited.select("wait", "wait_op", at_ns="start_ns")
    paid = paid.sort("start_ns").join_asof(evidence, left_on="start_ns", right_on="at_ns")
    lookup = pl.DataFrame(
        {
            "state": range(len(rows)),
            "wall": [r.wall for r in rows],
            "cause": [r.cause for r in rows],
            "basis": [r.basis for r in rows],
        },
        schema={"state": pl.Int32, "wall": pl.Categorical, "cause": pl.Categorical, "basis": pl.Categorical},
    )
    columns = ["name", "op_name", "activity", "start_ns", "end_ns", "wall", "cause", "basis"]
    unpaid_rows = rest.join(lookup, on="state", maintain_order="left").select(columns)
    paid_rows = _segments(
        paid.with_columns(name="wait", op_name="wait_op"), charges.SYNCHRONISATION, pl.col("start_ns"), pl.col("end_ns")
    )
    return pl.concat([unpaid_rows, paid_rows.select(columns)])
