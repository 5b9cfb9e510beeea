"""op → launch → activity: which op a launch nests in, which call launched an activity, and what each call does."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import cache
from importlib.resources import files

import polars as pl

from trace_doctor.loaders import sparing
from trace_doctor.loaders.nesting import nest
from trace_doctor.trace import CALL_KINDS, Meta, Trace

_ENQUEUING = ["launch", "graph_launch", "copy", "set"]
_INT64 = 1 << 63
_FAR_BETTER = 2
"""Another process takes a device over from the loader's guess when it explains more than this many times as much of it."""


def link(trace: Trace) -> Trace:
    """Fills `ops.parent`, `calls.kind`, `calls.op`, and `activities.process`, `.call` and `.op`.

    - `calls.kind` comes from calls.toml. A call of unknown name that enqueued an activity is of that activity's kind.
    - `ops.parent` and `calls.op` come from nesting on the same thread (`nesting.nest`), so backward ops stand under the
      autograd thread's own ranges. `External id` is not consulted: on real traces it agrees with nesting on all launches but a
      few, and there it names an op that had ended milliseconds before.
    - An activity belongs to the call of the same (process, correlation); ids of 0 or less mean none. Where several calls share
      an id (runtime and driver rows of one launch), the one that enqueues work wins, and of several such the first: it
      encloses the others.
    - Correlation ids are unique within a process only. Nsight names the process of each activity. Where a Kineto file has
      several, a device belongs to the one that the loader names, unless another explains more than twice as many of its
      activities: a call that enqueues work, of the same id, begun before the activity.
    """
    parent, around = nest(trace.ops, trace.calls)
    calls = trace.calls.with_columns(kind=call_kinds(trace.calls["name"]), op=around)
    of_processes = calls.with_columns(process=processes(trace.meta, calls["thread"]))
    is_guessed = trace.meta.format == "kineto" and len(trace.meta.processes) > 1
    activities = _with_processes(trace.activities, _launchers(of_processes)) if is_guessed else trace.activities
    call = _looked_up(activities, of_processes)
    if call is None:
        launchers = _launchers(of_processes)
        call = activities.join(launchers, on=["process", "correlation"], how="left", maintain_order="left")[
            "call_right"
        ]
    activities = activities.with_columns(call=call, op=calls["op"].gather(call))
    return replace(
        trace,
        activities=activities,
        ops=trace.ops.with_columns(parent=parent),
        calls=calls.with_columns(kind=_kinds_by_effect(calls["kind"], activities)),
    )


def call_kinds(names: pl.Series) -> pl.Series:
    """What each API call does, from its name: CALL_KINDS."""
    distinct = names.unique().drop_nulls()
    kinds = pl.Series([_kind(name) for name in distinct.cast(pl.String)], dtype=CALL_KINDS)
    return names.replace_strict(distinct, kinds, default="other", return_dtype=CALL_KINDS).rename("kind")


def _kind(name: str) -> str:
    return next((kind for kind, pattern in _patterns() if pattern.match(name)), "other")


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    table = tomllib.loads(files("trace_doctor.loaders").joinpath("calls.toml").read_text(encoding="utf-8"))
    return [(row["kind"], re.compile(row["pattern"])) for row in table["call"]]


def processes(meta: Meta, threads: pl.Series) -> pl.Series:
    """The process of each of these threads."""
    return pl.Series("process", [thread.process for thread in meta.threads], dtype=pl.UInt16).gather(threads)


def _looked_up(activities: pl.DataFrame, calls: pl.DataFrame) -> pl.Series | None:
    """The call of each activity; None where calls share an id.

    Profilers count ids up, so that the calls are nearly in their order: a binary search costs a fifth of a join.
    """
    known = sparing.keep(calls.select("process", "correlation", "call"), pl.col("correlation") > 0)
    if known.is_empty():
        return None
    ids = 1 + _highest(known["correlation"])
    if ids * (1 + max(_highest(frame["process"]) for frame in (known, activities))) >= _INT64:
        return None
    key = pl.col("process").cast(pl.Int64) * ids + pl.col("correlation")
    known = sparing.in_order(known.select("call", key=key), "key")
    keys = known["key"]
    if (keys == keys.shift(1)).any():
        return None
    is_known = pl.col("correlation").is_between(1, ids - 1)
    wanted = activities.select(pl.when(is_known).then(key).fill_null(-1)).to_series()
    at = keys.search_sorted(wanted).clip(upper_bound=len(keys) - 1)
    return known["call"].gather(at.set(keys.gather(at) != wanted, None))


def _highest(numbers: pl.Series) -> int:
    return int(numbers.max() or 0)  # type: ignore[arg-type]


def _launchers(calls: pl.DataFrame) -> pl.DataFrame:
    """One call for every (process, correlation): process, correlation, call, start_ns."""
    return (
        calls.filter(pl.col("correlation") > 0)
        .select("process", "correlation", "call", "start_ns", enqueues=pl.col("kind").is_in(_ENQUEUING))
        .sort(~pl.col("enqueues"), "start_ns")
        .unique(["process", "correlation"], keep="first", maintain_order=True)
    )


def _with_processes(activities: pl.DataFrame, launchers: pl.DataFrame) -> pl.DataFrame:
    """The activities with `process` as the calls show it, see `link`."""
    explained = (
        activities.filter(pl.col("correlation") > 0)
        .select("device", "correlation", "start_ns", guess="process")
        .join(launchers.filter("enqueues"), on="correlation", suffix="_call")
        .filter(pl.col("start_ns_call") <= pl.col("start_ns"))
        .group_by("device", "process")
        .agg(count=pl.len(), is_guess=(pl.col("process") == pl.col("guess")).any())
        # the loader's guess needs no majority, only to be not far behind
        .with_columns(weight=pl.col("count") * pl.when("is_guess").then(_FAR_BETTER).otherwise(1))
        .sort("device", "weight", "is_guess", "process", descending=[False, True, True, False])
        .unique("device", keep="first", maintain_order=True)
        .select("device", owner="process")
    )
    return (
        activities.join(explained, on="device", how="left", maintain_order="left")
        .with_columns(process=pl.coalesce("owner", "process"))
        .drop("owner")
    )


def _kinds_by_effect(kinds: pl.Series, activities: pl.DataFrame) -> pl.Series:
    """Kinds of calls, those of unknown name by what they enqueued."""
    is_unknown = (kinds == "other").gather(activities["call"]).fill_null(value=False)
    effects = activities.select("call", "kind").filter(is_unknown).unique("call", keep="first")
    effect = (
        effects["kind"]
        .cast(pl.String)
        .replace_strict({"copy": "copy", "set": "set"}, default="launch", return_dtype=CALL_KINDS)
    )
    return kinds.scatter(effects["call"], effect) if len(effects) else kinds
