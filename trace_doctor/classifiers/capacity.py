"""How full a GPU's memory got, how the allocator got it, and what recomputation keeps out of it."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.report import Memory, MemoryPoint
from trace_doctor.trace import ALLOCATED, RESERVED

USABLE_SHARE = 0.9
"""Of the device, for tensors: the rest is for the context, communicators and fragmentation."""
MOST_POINTS = 200


class Recomputed(NamedTuple):
    """What dropping recomputation would keep in memory, of one step."""

    saved_bytes: float
    """Growth of what tensors hold while forward work runs again, summed over the regions: at most this much more is held at once."""
    regions: float
    """Stretches of forward work that runs again, a layer or block each."""


def memory_of(analysis: Analysis) -> Memory | None:
    """The memory of one GPU; None where the trace has neither memory events nor allocator calls in the window."""
    held, hull = levels(analysis), _launching(analysis)
    mallocs, frees, retries = _calls(analysis, *hull)
    if held.is_empty() and not mallocs + frees:
        return None
    capacity = analysis.trace.meta.devices[analysis.number].memory_bytes
    inside = _during(held, *hull)
    peak, reserved = _whole(inside["allocated"].max()), _whole(inside["reserved"].max())
    at_peak = inside.filter(pl.col("allocated") == pl.col("allocated").max())["reserved"].drop_nulls()
    return Memory(
        capacity_bytes=capacity,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=reserved,
        share=reserved / capacity if reserved is not None and capacity else None,
        resident_bytes=_whole(_during(held, *_between_launches(analysis, *hull))["allocated"].min()),
        fragmented_bytes=int(at_peak[0]) - peak if peak is not None and len(at_peak) else None,
        room_bytes=max(0, round(USABLE_SHARE * capacity) - peak) if peak is not None and capacity else None,
        file_peak_allocated_bytes=_whole(held["allocated"].max()),
        file_peak_reserved_bytes=_whole(held["reserved"].max()),
        mallocs=mallocs,
        frees=frees,
        retries=retries,
        events=len(held),
        timeline=_timeline(held),
        basis="measured" if len(held) else None,
    )


def levels(analysis: Analysis) -> pl.DataFrame:
    """What the allocator held of one GPU after each change: at_ns (ascending, unique), allocated, reserved in bytes."""
    wanted = pl.Series([ALLOCATED, RESERVED], dtype=pl.Categorical).implode()
    metrics = analysis.trace.metrics.filter(pl.col("device") == analysis.number, pl.col("name").is_in(wanted))
    values = {
        column: pl.when(pl.col("name") == name).then("value")
        for column, name in (("allocated", ALLOCATED), ("reserved", RESERVED))
    }
    return (
        metrics.select("at_ns", **values)
        .group_by("at_ns")
        .agg(pl.col("allocated", "reserved").max())
        .sort("at_ns")
        .with_columns(pl.col("allocated", "reserved").forward_fill())
    )


def recomputed(analysis: Analysis, kernels: pl.DataFrame, *, steps: int) -> Recomputed | None:
    """What tensors gain, a step, while forward work runs again; None where no memory events tell.

    `kernels`: the GPU's activities in the window, a row each, with `kind`, `recompute`, `call` and `op_row`.
    """
    held, trace = levels(analysis).drop_nulls("allocated"), analysis.trace
    rows = kernels.filter((pl.col("kind") == "compute") & pl.col("call").is_not_null())
    if held.is_empty() or rows.is_empty():
        return None
    call, op = trace.calls[rows["call"]], trace.ops[rows["op_row"]]
    launches = pl.DataFrame(
        {
            "again": rows["recompute"],
            "thread": call["thread"],
            "at_ns": call["start_ns"],
            "start_ns": op["start_ns"],
            "end_ns": op["start_ns"] + op["duration_ns"],
        }
    ).sort("thread", "at_ns")
    # what the region's own temporaries hold is gone before the next op starts
    following_ns = pl.col("start_ns").shift(-1).over("thread") - 1
    regions = (
        launches.with_columns(
            region=pl.struct("thread", "again").rle_id(), end_ns=pl.max_horizontal("end_ns", following_ns)
        )
        .filter("again")
        .group_by("region")
        .agg(pl.col("start_ns").min() - 1, pl.col("end_ns").max())
        .drop_nulls()
    )
    grown = _level_at(held, regions["end_ns"]) - _level_at(held, regions["start_ns"])
    return Recomputed(float(grown.clip(lower_bound=0).sum()) / steps, len(regions) / steps)


def _level_at(held: pl.DataFrame, times: pl.Series) -> pl.Series:
    """What tensors hold at each time; null before the first event."""
    after = held["at_ns"].search_sorted(times, side="right").cast(pl.Int64)
    return held["allocated"].gather(pl.select(pl.when(after > 0).then(after - 1)).to_series())


def _launching(analysis: Analysis) -> tuple[int, int]:
    """From when to when the window's work was launched; the window itself where no launches are recorded."""
    calls, spans = _launches(analysis, analysis.account.timeline.pieces), analysis.spans
    if calls.is_empty():
        return int(spans["start_ns"].min()), int(spans["end_ns"].max())  # type: ignore[arg-type]
    return int(calls["start_ns"].min()), int(calls["end_ns"].max())  # type: ignore[arg-type]


def _launches(analysis: Analysis, activities: pl.DataFrame) -> pl.DataFrame:
    """start_ns and end_ns of the calls that launched the activities, in any order and number."""
    times = analysis.trace.calls.select("start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    return times[activities["call"].drop_nulls()]


def _between_launches(analysis: Analysis, start_ns: int, end_ns: int) -> tuple[int, int]:
    """The same from the launch before to the launch after: what the window's first op allocates stands before its launch."""
    launches = _launches(analysis, analysis.trace.activities)
    at_ns, ends_ns = launches["start_ns"], launches["end_ns"]
    before, after = ends_ns.filter(at_ns < start_ns).max(), at_ns.filter(at_ns > end_ns).min()
    return (before if isinstance(before, int) else start_ns, after if isinstance(after, int) else end_ns)


def _during(held: pl.DataFrame, start_ns: int, end_ns: int) -> pl.DataFrame:
    """The levels from `start_ns` to `end_ns`, with the one that holds at the start."""
    before = held.filter(pl.col("at_ns") < start_ns).tail(1)
    return pl.concat([before, held.filter(pl.col("at_ns").is_between(start_ns, end_ns))])


def _calls(analysis: Analysis, start_ns: int, end_ns: int) -> tuple[int, int, int | None]:
    """Calls for memory of the device, releases of it, and releases that an allocation of the same op follows at once.

    `torch.cuda.empty_cache()` releases outside of the op that allocates next; without host ops the two can't be told apart.
    """
    processes = analysis.account.timeline.pieces["process"].drop_nulls().unique()
    threads = [n for n, thread in enumerate(analysis.trace.meta.threads) if thread.process in processes]
    calls = analysis.trace.calls.select("kind", "thread", "start_ns", "name", "op").filter(
        pl.col("kind").is_in(["malloc", "free", "launch", "graph_launch", "copy", "set"]),
        pl.col("thread").is_in(threads),
        pl.col("start_ns").is_between(start_ns, end_ns),
    )
    kinds = dict(calls.filter(_is_of_device()).group_by("kind").len().iter_rows())
    in_order = calls.filter(_is_of_device() | ~pl.col("kind").is_in(["malloc", "free"])).sort("thread", "start_ns")
    following = pl.col("kind", "op").shift(-1).over("thread").name.suffix("_next")
    retried = in_order.with_columns(following).filter(
        (pl.col("kind") == "free") & (pl.col("kind_next") == "malloc") & pl.col("op").eq_missing(pl.col("op_next"))
    )
    return kinds.get("malloc", 0), kinds.get("free", 0), len(retried) if analysis.trace.meta.has_ops else None


def _is_of_device() -> pl.Expr:
    """Whether a call allocates or releases memory of the device, not pinned memory of the host."""
    return pl.col("kind").is_in(["malloc", "free"]) & ~pl.col("name").cast(pl.String).str.contains("Host")


def _timeline(held: pl.DataFrame) -> list[MemoryPoint]:
    """The levels; of more than `MOST_POINTS`, the highest in each of as many groups of neighbours."""
    if len(held) > MOST_POINTS:
        group = pl.int_range(pl.len()) * MOST_POINTS // pl.len()
        held = held.group_by(group.alias("group"), maintain_order=True).agg(
            pl.all().sort_by("allocated", nulls_last=False).last()
        )
    return [
        MemoryPoint(at_ns=at_ns, allocated_bytes=_whole(allocated), reserved_bytes=_whole(reserved))
        for at_ns, allocated, reserved in held.select("at_ns", "allocated", "reserved").iter_rows()
    ]


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None
