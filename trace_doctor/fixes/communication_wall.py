"""Rules for the communication wall: what of it is waiting, what is slow, and what could hide behind compute."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from trace_doctor.fixes.case import Case, launched_inside
from trace_doctor.fixes.finding import Draft, largest
from trace_doctor.report import Evidence

EXPOSED = ("wire time", "waiting or slow", "waiting for a straggler", "slow collective")
HOST_LATE = ("launch-bound", "host code", "launch call blocked", "synchronisation", "garbage collection", "logging")
SIGNATURE = ["operation", "group", "message_bytes"]
NO_WAIT_NS = 50_000
"""A collective this short did not wait."""
MOSTLY = 0.5
COMMUNICATES_SHARE = 0.05
ENOUGH_MESSAGES = 20
ENOUGH_REPEATS = 2
DDP_FORWARD = r"DistributedDataParallel\.forward"
BACKWARD = r"^autograd::engine::evaluate_function"
REDUCTIONS = ("all_reduce", "reduce_scatter")
EMBEDDING_TABLES = r"(?i)embedding_?bag|^fbgemm::"
"""Ops of recommendation models, which exchange what they looked up."""


def collectives_of(case: Case) -> pl.DataFrame:
    """The collectives of the window, compared with the fastest of the same operation and group that are no larger.

    `best_ns`: how long it takes at the bandwidth of that one (the larger a message, the higher its bandwidth), null where the size is
    unknown or there is none to compare; `waited`: took `waiting_ratio` times that; `punctual`: did not.
    """
    instances = case.kernels.filter(pl.col("kind") == "communication")
    size, same = pl.col("message_bytes"), ["operation", "group"]
    bandwidth = (size / pl.col("duration_ns").clip(lower_bound=1)).max().over(SIGNATURE)
    is_comparable = size.rank("max").over(same) >= ENOUGH_REPEATS
    best = pl.when(is_comparable).then(size / bandwidth.cum_max().over(same, order_by="message_bytes"))
    return instances.with_columns(best_ns=best).with_columns(
        waited=(
            (pl.col("duration_ns") >= case.limits.waiting_ratio * pl.col("best_ns"))
            & (pl.col("duration_ns") > NO_WAIT_NS)
        ).fill_null(value=False),
        punctual=(
            (pl.col("duration_ns") < case.limits.waiting_ratio * pl.col("best_ns")).fill_null(value=False)
            | (pl.col("duration_ns") <= NO_WAIT_NS)
        ),
    )


def same_stream(case: Case) -> Iterable[Draft]:
    """Collectives on a stream that compute kernels run on as well: they can't overlap."""
    exposed = _exposed(case)
    if not case.is_worth_saying(exposed):
        return
    computing = case.kernels.select("kind", "stream", "duration_ns").filter(pl.col("kind") == "compute")
    held = computing.group_by("stream").agg(pl.col("duration_ns").sum())
    main = held.filter(pl.col("duration_ns") > 0, pl.col("duration_ns") >= MOSTLY * pl.col("duration_ns").sum())
    claims = exposed.filter(pl.col("stream").is_in(main["stream"].implode()))
    if case.is_worth_saying(claims):
        yield Draft(
            claims,
            "high: the stream is recorded",
            words=_collective_words(claims),
            evidence=_by_collective(case, claims),
        )


def repeated_all_reduce(case: Case) -> Iterable[Draft]:
    """Gradients all-reduced in every micro-batch of an accumulated step: all but the last are for nothing."""
    exposed = _exposed(case)
    if not case.is_worth_saying(exposed):
        return
    reductions = _gradient_reductions(case)
    passes = _forward_passes(case)
    reduced = exposed.join(reductions, on="activity", how="semi")
    if passes < ENOUGH_REPEATS or not case.kernels["in_optimizer"].any() or not case.is_worth_saying(reduced):
        return
    per_step = reductions.group_by("message_bytes").len()
    if (per_step["len"] % (passes * case.steps) == 0).all():
        yield Draft(
            reduced.with_columns(time_ns=pl.col("time_ns") * (passes - 1) / passes),
            "high: each gradient bucket is all-reduced once a forward pass, the optimizer steps once",
            words=_collective_words(reduced) | {"passes": str(passes)},
            evidence=_by_collective(case, reduced),
        )


def _gradient_reductions(case: Case) -> pl.DataFrame:
    """Large all-reduces of the groups that reduce nothing in the forward pass, as tensor parallelism would."""
    in_forward = launched_inside(case.analysis.trace, case.kernels, DDP_FORWARD)
    large = case.kernels.with_columns(in_forward=in_forward).filter(
        (pl.col("operation") == "all_reduce") & (pl.col("message_bytes") >= case.limits.small_message_bytes)
    )
    return large.filter(~pl.col("in_forward").any().over("group"))


def _forward_passes(case: Case) -> int:
    """Forward passes of DistributedDataParallel in a step."""
    trace, spans = case.analysis.trace, case.analysis.window.spans
    names = pl.col("name").cast(pl.String).str.contains(DDP_FORWARD)
    marks = pl.concat([trace.annotations.select("start_ns", "name"), trace.ops.select("start_ns", "name")]).filter(
        names
    )
    inside = marks.filter(pl.col("start_ns").is_between(pl.lit(spans["start_ns"].min()), pl.lit(spans["end_ns"].max())))
    return round(len(inside) / case.steps)


def late_at_collectives(case: Case) -> Iterable[Draft]:
    """Idle time of a late host before collectives that then did not wait: this rank came last, and the others waited for it."""
    collectives = collectives_of(case)
    whole = case.analysis.account.timeline.communication_ns
    if collectives.is_empty() or whole < COMMUNICATES_SHARE * case.window_ns:
        return
    following = collectives.select("start_ns", "punctual").sort("start_ns")
    late = (
        case.caused(*HOST_LATE)
        .filter("is_idle")
        .sort("start_ns")
        .join_asof(following, on="start_ns", strategy="forward")
    )
    claims = late.filter(pl.col("punctual").fill_null(value=False)).drop("punctual")
    ends = late["time_ns"].sum()
    if case.share(claims) >= case.limits.weighty_gaps_share and float(claims["time_ns"].sum()) >= MOSTLY * float(ends):
        yield Draft(
            claims,
            "medium: the collectives after these gaps run at their fastest, so this rank came last; the other ranks' traces would prove it",
            words=largest(claims),
        )


def slow_link(case: Case) -> Iterable[Draft]:
    """Large collectives far below the bandwidth of their link, even in their fastest instance."""
    limits = case.limits
    large = collectives_of(case).filter(
        (pl.col("message_bytes") >= limits.large_message_bytes) & (pl.col("wire_bytes") > 0)
    )
    best = large.group_by(SIGNATURE).agg(
        bandwidth=(1e9 * pl.col("wire_bytes") / pl.col("duration_ns")).max(),
        expected=pl.when((pl.col("wire_basis") == "modelled").first())
        .then(limits.slow_link_share * pl.col("expected_bandwidth").first())
        .otherwise(limits.slow_network_bandwidth),
    )
    slow = best.filter(pl.col("bandwidth") < pl.col("expected"))
    for exposed in _by_group(case):
        guilty = exposed.join(slow, on=SIGNATURE, how="semi", nulls_equal=True)
        if case.is_worth_saying(exposed) and float(guilty["time_ns"].sum()) >= MOSTLY * float(exposed["time_ns"].sum()):
            bandwidth = float(slow.join(guilty, on=SIGNATURE, how="semi", nulls_equal=True)["bandwidth"].min())  # type: ignore[arg-type]
            yield Draft(
                exposed,
                "medium: the bandwidth is measured, but one rank alone can't tell a slow link from waiting for another rank",
                words=_collective_words(exposed) | {"bandwidth": f"{bandwidth / 1e9:,.1f} GB/s"},
                evidence=_by_collective(case, exposed),
            )


def small_collectives(case: Case) -> Iterable[Draft]:
    """Many collectives too small to reach the bandwidth of the link."""
    claims = _exposed(case).filter(
        (pl.col("message_bytes") < case.limits.small_message_bytes) & (pl.col("duration_ns") < 2 * NO_WAIT_NS)
    )
    count = claims["activity"].n_unique() / case.steps
    if case.is_worth_saying(claims) and count >= ENOUGH_MESSAGES:
        yield Draft(
            claims,
            "high: sizes and times are recorded",
            words=_collective_words(claims) | {"per": case.per, "count": f"{count:,.0f}"},
            evidence=_by_collective(case, claims),
        )


def waiting_for_ranks(case: Case) -> Iterable[Draft]:
    """Groups whose exposed communication is mostly collectives that took far longer than their fastest instance: they waited."""
    waited = (
        collectives_of(case).filter("waited").select("activity", excess=1 - pl.col("best_ns") / pl.col("duration_ns"))
    )
    for exposed in _by_group(case):
        excess = exposed.join(waited, on="activity")
        waiting_ns = float((excess["time_ns"] * excess["excess"]).sum())
        if case.is_worth_saying(exposed) and waiting_ns >= MOSTLY * float(exposed["time_ns"].sum()):
            yield Draft(
                exposed,
                "medium: the same collective is far faster elsewhere in this trace; which rank comes late only the others' traces tell",
                words=_collective_words(exposed) | {"waiting": f"{waiting_ns / float(exposed['time_ns'].sum()):.0%}"},
                evidence=_by_collective(case, exposed),
            )


def exposed_communication(case: Case) -> Iterable[Draft]:
    """What is left of the exposed communication, a finding a process group."""
    for exposed in _by_group(case):
        if case.is_worth_saying(exposed):
            yield Draft(
                exposed,
                "medium: measured as exposed; one rank alone can't tell a slow link from waiting for another rank",
                words=_collective_words(exposed),
                variant=_parallelism(case, exposed),
                evidence=_by_collective(case, exposed),
            )


def _exposed(case: Case) -> pl.DataFrame:
    """The exposed communication, with what is known of each collective."""
    return case.with_kernels(case.caused(*EXPOSED), "stream", "duration_ns", *SIGNATURE, "wire_bytes")


def _by_group(case: Case) -> list[pl.DataFrame]:
    exposed = _exposed(case)
    return exposed.partition_by("group", maintain_order=True) if len(exposed) else []


def _parallelism(case: Case, exposed: pl.DataFrame) -> str:
    """Which parallelism moves most, as the variants of the advice are called; "" for gradients."""
    sums = exposed.group_by("operation", "group").agg(pl.col("time_ns").sum()).sort("time_ns")
    operation, group = sums.select("operation", "group").row(-1) if len(sums) else (None, None)
    if operation == "all_to_all":
        return _exchange(case, exposed)
    if group in _tensor_parallel_groups(case):
        return "tensor"
    return "sharded" if operation in ("all_gather", "reduce_scatter") else ""


def _exchange(case: Case, exposed: pl.DataFrame) -> str:
    """Whose all-to-all it is: "embedding" of looked up rows, "expert" of tokens, "deep-ep" where kernels made for it run."""
    if exposed["name"].cast(pl.String).str.contains("deep_ep").any():
        return "deep-ep"
    looks_up = case.analysis.trace.ops["name"].unique().cast(pl.String).str.contains(EMBEDDING_TABLES).any()
    return "embedding" if looks_up else "expert"


def _tensor_parallel_groups(case: Case) -> list[str | None]:
    """Groups that reduce between two matmuls of the forward pass; gradients are reduced in or after the backward pass."""
    trace = case.analysis.trace
    if trace.ops.is_empty():
        return []
    in_graphs = pl.col("call").is_in(trace.calls.filter(pl.col("kind") == "graph_launch")["call"].implode())
    is_later = launched_inside(trace, case.kernels, BACKWARD) | case.kernels["in_optimizer"]
    kernels = case.kernels.with_columns(in_forward=~is_later).filter(~in_graphs).sort("start_ns")
    matmuls = kernels.filter("tensor").select("start_ns", "in_forward")
    reductions = kernels.filter(pl.col("operation").cast(pl.String).is_in(REDUCTIONS), "in_forward").select(
        "start_ns", "group"
    )
    beside = reductions.join_asof(
        matmuls.rename({"in_forward": "after"}), on="start_ns", strategy="backward"
    ).join_asof(matmuls.rename({"in_forward": "before"}), on="start_ns", strategy="forward")
    return beside.filter("after", "before")["group"].unique().to_list()


def _collective_words(claims: pl.DataFrame) -> dict[str, str]:
    sums = claims.group_by("operation").agg(pl.col("time_ns").sum()).drop_nulls("operation").sort("time_ns")
    operation = str(sums["operation"][-1]) if len(sums) else "collective"
    groups = claims["group"].drop_nulls().unique().sort().to_list()
    return largest(claims) | {
        "operation": operation.replace("_", "-"),
        "group": f" of group {groups[0]}" if len(groups) == 1 else "",
    }


def _by_collective(case: Case, claims: pl.DataFrame) -> tuple[Evidence, ...]:
    """Evidence by operation and group: how often, how exposed, how fast."""
    sums = (
        claims.unique("activity")
        .group_by("operation", "group")
        .agg(
            count=pl.len(),
            took_ns=pl.col("duration_ns").sum(),
            bytes=pl.col("message_bytes").sum(),
            bandwidth=(1e9 * pl.col("wire_bytes") / pl.col("duration_ns")).median(),
        )
        .join(
            claims.group_by("operation", "group").agg(pl.col("time_ns").sum()),
            on=["operation", "group"],
            nulls_equal=True,
        )
        .sort(["time_ns", "operation"], descending=[True, False])
        .head(3)
    )
    return tuple(
        Evidence(
            kind="collective",
            name=f"{(operation or 'collective').replace('_', '-')}{f' of group {group}' if group else ''}",
            rank=case.analysis.trace.meta.rank,
            count=count,
            duration_ns=took_ns,
            numbers={"exposed_ms": round(time_ns / 1e6, 3)}
            | ({"median_bus_bandwidth_gb_s": round(bandwidth / 1e9, 2)} if bandwidth else {}),
        )
        for operation, group, count, took_ns, _, bandwidth, time_ns in sums.iter_rows()
    )
