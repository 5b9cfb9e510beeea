"""Rules for the small-kernel wall: launches too slow for the GPU, kernels too short to fill it."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from trace_doctor.fixes.case import Case
from trace_doctor.fixes.finding import Draft, largest
from trace_doctor.report import Evidence

COMPILED = r"^triton_|^Torch-Compiled Region|^CompiledFunction"


def launch_bound(case: Case) -> Iterable[Draft]:
    """The GPU ran dry because the host could not launch fast enough; the advice depends on what launches."""
    claims = case.caused("launch-bound")
    if not case.is_worth_saying(claims):
        return
    kernels = case.kernels.filter(pl.col("kind") == "compute")
    lengths = kernels["duration_ns"].median()
    typical_us = lengths / 1e3 if isinstance(lengths, (int, float)) else 0.0
    yield Draft(
        claims,
        "high: the gaps end with kernels that were launched late, one launch close upon the other",
        words=largest(claims)
        | {"per": case.per, "kernels": f"{len(kernels) / case.steps:,.0f}", "typical": f"{typical_us:,.1f} us"},
        variant=_variant(case),
        evidence=(
            Evidence(
                kind="kernels",
                name="compute kernels a step",
                rank=case.analysis.trace.meta.rank,
                count=round(len(kernels) / case.steps),
                numbers={"median_us": round(typical_us, 2)},
            ),
        ),
        is_remark=case.share(claims) < case.limits.weighty_gaps_share,
    )


def _variant(case: Case) -> str:
    """Which remedy is left: graphs where the model is compiled already, a wider capture where there are graphs."""
    if has_graphs(case):
        return "graphs"
    return "compiled" if is_compiled(case) else ""


def has_graphs(case: Case) -> bool:
    """Whether CUDA graphs are launched in the window."""
    calls = case.analysis.trace.calls
    launching = calls[case.kernels["call"].drop_nulls().unique()]
    return bool((launching["kind"] == "graph_launch").any()) or bool((case.kernels["kind"] == "graph").any())


def is_compiled(case: Case) -> bool:
    """Whether torch.compile made some of the kernels or ranges."""
    names = pl.concat([case.kernels["name"].unique(), case.analysis.trace.ops["name"].unique()]).drop_nulls()
    return bool(names.cast(pl.String).str.contains(COMPILED).any())


def short_kernels(case: Case) -> Iterable[Draft]:
    """Kernels near the shortest time a kernel can take, and the pauses between queued ones."""
    claims = case.caused("too short to fill the GPU", "device-side gap")
    if not case.is_worth_saying(claims):
        return
    kernels = claims.filter(~pl.col("is_idle"))
    yield Draft(
        claims,
        "medium: the shortest time of a kernel is the median of this trace's kernels without traffic",
        words=largest(claims) | {"per": case.per, "kernels": f"{len(kernels) / case.steps:,.0f}"},
        variant="compiled" if is_compiled(case) else "",
        is_remark=case.share(claims) < case.limits.weighty_gaps_share,
    )
