"""What NCCL told Nsight of its collectives, in the payloads of its NVTX ranges."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
import polars as pl

from trace_doctor.loaders import sparing
from trace_doctor.loaders.nsight.activities import Activities
from trace_doctor.loaders.nsight.threads import owner_of
from trace_doctor.trace import COLLECTIVES, empty

_RANKS, _RANK, _SIZE, _COMMUNICATOR = "No. of ranks", "Rank", "Message size [bytes]", "NCCL communicator ID"
_COLLECTIVE = (
    r"^p?nccl(AllReduce|Broadcast|Bcast|Reduce|AllGather|ReduceScatter|Send|Recv|AlltoAll|AllToAll|Gather|Scatter)$"
)


class Job(NamedTuple):
    """What the communicators say of the job."""

    rank: int | None
    """Of the only process of the file."""
    world_size: int | None


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Payload(msgspec.Struct):
    communicator: int | str | None = msgspec.field(default=None, name=_COMMUNICATOR)
    size: _Count | None = msgspec.field(default=None, name=_SIZE)
    ranks: _Count | None = msgspec.field(default=None, name=_RANKS)
    rank: _Count | None = msgspec.field(default=None, name=_RANK)


def job(ranges: pl.DataFrame) -> Job:
    """Rank and world size, from the largest communicator that was opened while Nsight recorded."""
    opened = _told(ranges).drop_nulls("ranks").sort("ranks", descending=True)
    if opened.is_empty():
        return Job(None, None)
    ranks = opened.filter(pl.col("ranks") == opened["ranks"][0])["rank"].unique()
    return Job(ranks[0] if len(ranks) == 1 else None, opened["ranks"][0])


def told(activities: Activities, calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """The collective of each kernel that was launched inside NCCL's range of one, with columns of `trace.COLLECTIVES`.

    A kernel belongs to the last collective begun on its thread before its launch call, if that lies inside; sizes are bytes.
    `activities` need activity, queue and correlation, `calls` tid, start_ns and correlation. `sequence` counts the calls of a
    communicator on each process, so that the ranks' calls pair.
    """
    every = _told(ranges)
    of_groups = every.drop_nulls("ranks").unique("communicator").select("communicator", group_size="ranks")
    begun = every.filter(pl.col("name").cast(pl.String).str.contains(_COLLECTIVE)).sort("start_ns")
    if begun.is_empty():
        return empty(COLLECTIVES)
    begun = begun.with_columns(
        sequence=pl.int_range(pl.len()).over(owner_of(pl.col("tid")), "communicator"),
        end_ns=pl.col("start_ns") + pl.col("duration_ns"),
    )
    launches = calls.select("tid", "correlation", at_ns="start_ns", owner=owner_of(pl.col("tid")))
    launches = sparing.in_order(launches, "at_ns")
    inside = launches.join_asof(begun, left_on="at_ns", right_on="start_ns", by="tid", check_sortedness=False)
    inside = inside.filter(pl.col("at_ns") <= pl.col("end_ns")).join(of_groups, on="communicator", how="left")
    kernels = activities.rows.filter(pl.col("kind") == "compute").select("activity", "queue", "correlation")
    kernels = kernels.with_columns(owner=activities.queues["owner"].gather(kernels["queue"]))
    # NCCL tells the bytes of one rank: what it gives, or of a reduce-scatter what it takes
    takes = pl.col("name").str.contains("ReduceScatter")
    return (
        kernels.join(inside.with_columns(pl.col("name").cast(pl.String)), on=["owner", "correlation"])
        .sort("activity")
        .select(
            "activity",
            "name",
            "group_size",
            dtype=pl.when(pl.col("size").is_not_null()).then(pl.lit("Byte")),
            in_elements=pl.when(~takes).then("size"),
            out_elements=pl.when(takes).then("size"),
            group="communicator",
            sequence=pl.when(pl.col("communicator").is_not_null()).then("sequence"),
        )
    )


def _told(ranges: pl.DataFrame) -> pl.DataFrame:
    """NCCL's ranges with what their payloads say: communicator, size, ranks, rank."""
    own = ranges.filter("is_library").filter(pl.col("name").cast(pl.String).str.contains("^p?nccl"))
    texts = own["payload"].unique().drop_nulls()
    rows = [_payload(text) for text in texts.cast(pl.String)]
    schema = {"communicator": pl.String, "size": pl.Int64, "ranks": pl.Int64, "rank": pl.Int64}
    known = pl.DataFrame(rows, schema=schema, orient="row").with_columns(texts.alias("payload"))
    return own.join(known, on="payload", how="left", maintain_order="left")


def _payload(text: str) -> tuple[str | None, int | None, int | None, int | None]:
    try:
        told = msgspec.json.decode(text, type=_Payload)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None, None, None, None
    return str(told.communicator) if told.communicator is not None else None, told.size, told.ranks, told.rank
