"""Rules for the small-kernel wall: launches too slow for the GPU, kernels too short to fill it."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from trace_doctor.classifiers.intervals import cut, union
from trace_doctor.fixes.case import Case
from trace_doctor.fixes.finding import Draft, largest
from trace_doctor.report import Evidence

REGION = r"^Torch-Compiled Region: (\d+)/"
"""Dynamo numbers the frames that it compiles: what follows a graph break is the frame after the one before it."""
SHORT_NS = 10_000
"""Before a kernel longer than this the pause between two queued ones is no sign of short kernels."""


def graph_breaks(case: Case) -> Iterable[Draft]:
    """Idle time between a compiled region and the one that Dynamo compiled next: eager code that broke the graph."""
    late = case.caused("launch-bound", "host code").filter("is_idle")
    late = late.with_columns(end_ns=pl.col("start_ns") + pl.col("time_ns").round().cast(pl.Int64))
    broken = cut(late, _breaks(case), keep=["opens_ns"])
    claims = broken.with_columns(time_ns=(pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64))
    if case.is_weighty(claims):
        count = claims["opens_ns"].n_unique() / case.steps
        yield Draft(
            claims.drop("end_ns", "opens_ns"),
            "medium: the regions are recorded and numbered in a row; functions compiled one after another look the same",
            words=largest(claims) | {"per": case.per, "breaks": f"{count:,.0f}"},
        )


def _breaks(case: Case) -> pl.DataFrame:
    """From the end of a compiled region to the start of the next frame's, the next on its thread: start_ns, end_ns, opens_ns."""
    trace = case.analysis.trace
    columns = ["thread", "start_ns", "duration_ns", "name"]
    both = pl.concat([trace.ops.select(columns), trace.annotations.filter(pl.col("kind") == "user").select(columns)])
    names = both["name"].unique().drop_nulls()
    frames = pl.DataFrame(
        {"name": names, "frame": names.cast(pl.String).str.extract(REGION).cast(pl.Int64)}
    ).drop_nulls()
    following = pl.col("start_ns", "frame").shift(-1).over("thread", order_by="start_ns")
    regions = both.join(frames, on="name").with_columns(following.name.prefix("next_"))
    broken = regions.filter(pl.col("next_frame") == pl.col("frame") + 1).select(
        start_ns=pl.col("start_ns") + pl.col("duration_ns"), end_ns="next_start_ns"
    )
    return union(broken.filter(pl.col("start_ns") < pl.col("end_ns"))).with_columns(opens_ns="start_ns")


def cuda_graphs(case: Case) -> Iterable[Draft]:
    """Launch-bound steps that all launch the same kernels, none of them from a graph: what a CUDA graph replays at once."""
    claims = case.caused("launch-bound")
    if case.is_weighty(claims) and _is_static(case) and not has_graphs(case):
        yield _launching(
            case,
            claims,
            "medium: each step launches the same kernels with the same grids; whether addresses stay the same too has to be tried",
            variant="compiled" if case.is_compiled else "",
        )


def _is_static(case: Case) -> bool:
    """Whether all steps, of two or more, launch the same compute kernels with the same grids in the same order."""
    if case.steps == 1:
        return False
    columns = ["number", "start_ns", "activity", "name", "grid"]
    kernels = _launched_singly(case).filter(pl.col("number").is_not_null()).select(columns)
    kernels = kernels.sort("number", "start_ns", "activity")
    sequences = kernels.group_by("number").agg(pl.struct("name", "grid"))
    return len(sequences) == case.steps and sequences["name"].n_unique() == 1


def launch_bound(case: Case) -> Iterable[Draft]:
    """The GPU ran dry because the host could not launch fast enough; the advice depends on what launches."""
    claims = case.caused("launch-bound")
    if case.is_worth_saying(claims):
        yield _launching(
            case,
            claims,
            "high: the gaps end with kernels that were launched late, one launch close upon the other",
            variant=_variant(case),
        )


def _launching(case: Case, claims: pl.DataFrame, confidence: str, *, variant: str) -> Draft:
    """What launching costs, with the number of kernels that are launched one by one and how long they are."""
    kernels = _launched_singly(case)
    lengths = kernels["duration_ns"].median()
    typical_us = lengths / 1e3 if isinstance(lengths, (int, float)) else 0.0
    return Draft(
        claims,
        confidence,
        words=largest(claims)
        | {"per": case.per, "kernels": f"{len(kernels) / case.steps:,.0f}", "typical": f"{typical_us:,.1f} us"},
        variant=variant,
        evidence=(
            Evidence(
                kind="kernels",
                name=f"compute kernels {case.per}",
                rank=case.analysis.trace.meta.rank,
                count=round(len(kernels) / case.steps),
                numbers={"median_us": round(typical_us, 2)},
            ),
        ),
        is_remark=case.share(claims) < case.limits.weighty_gaps_share,
    )


def _launched_singly(case: Case) -> pl.DataFrame:
    """The compute kernels that no graph launched."""
    calls = case.analysis.trace.calls
    graphs = calls.filter(pl.col("kind") == "graph_launch")["call"]
    in_graph = pl.col("call").is_in(graphs.implode()).fill_null(value=False)
    kernels = case.kernels.select("activity", "kind", "call", "number", "start_ns", "duration_ns", "name", "grid")
    return kernels.filter((pl.col("kind") == "compute") & ~in_graph)


def _variant(case: Case) -> str:
    """Which remedy is left: graphs where the model is compiled already, a wider capture where there are graphs."""
    if has_graphs(case):
        return "graphs"
    return "compiled" if case.is_compiled else ""


def has_graphs(case: Case) -> bool:
    """Whether CUDA graphs are launched in the window."""
    launching = case.analysis.trace.calls["kind"].gather(case.kernels["call"].drop_nulls().unique())
    return bool((launching == "graph_launch").any()) or bool((case.kernels["kind"] == "graph").any())


def short_kernels(case: Case) -> Iterable[Draft]:
    """Kernels near the shortest time a kernel can take, and the pauses between queued ones."""
    is_pause = pl.col("is_idle") & (pl.col("duration_ns") < SHORT_NS)
    losses = case.with_kernels(case.caused("too short to fill the GPU", "device-side gap"), "duration_ns")
    claims = losses.filter(~pl.col("is_idle") | is_pause)
    if not case.is_worth_saying(claims):
        return
    kernels = claims.filter(~pl.col("is_idle"))
    yield Draft(
        claims,
        "medium: the shortest time of a kernel is the median of this trace's kernels without traffic",
        words=largest(claims) | {"per": case.per, "kernels": f"{len(kernels) / case.steps:,.0f}"},
        variant="compiled" if case.is_compiled else "",
        is_remark=case.share(claims) < case.limits.weighty_gaps_share,
    )
