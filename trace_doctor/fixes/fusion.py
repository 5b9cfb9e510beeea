"""The rule for chains of kernels that pass tensors on through memory."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from trace_doctor.classifiers import fusion
from trace_doctor.fixes.case import Case
from trace_doctor.fixes.finding import Draft, largest
from trace_doctor.report import Evidence

MOST_CHAINS = 3
MOST_OPS = 10
ARROW = " → "


def fusable_chain(case: Case) -> Iterable[Draft]:
    """Traffic between neighbouring pointwise kernels, norms, softmaxes and reductions that one kernel would keep on the chip."""
    bandwidth = case.analysis.device.memory_bandwidth
    if not bandwidth:
        return
    losses = case.lost(pl.col("wall") == "memory", ~pl.col("is_idle"))
    if not case.is_worth_saying(losses):
        return
    links = fusion.links(case.analysis.trace, case.kernels, memory_bandwidth=bandwidth)
    claims = _claims(losses, links)
    if not case.is_worth_saying(claims):
        return
    chains = _chains(case, links.join(claims.select("activity").unique(), on="activity", how="semi"))
    kernels = claims["activity"].n_unique()
    yield Draft(
        claims,
        "medium: neighbours on the stream whose shapes fit together; what autograd must keep still has to be written",
        words=largest(claims)
        | {
            "chain": chains["ops"][0],
            "kernels": f"{kernels / case.steps:,.0f}",
            "per": case.per,
            "saved": f"{float(chains['saved_bytes'].sum()) / case.steps / 1e9:,.2f} GB",
        },
        variant="compiled" if case.is_compiled else "",
        evidence=tuple(_evidence(case, chains.head(MOST_CHAINS))),
    )


def _claims(losses: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """What is lost to memory by each kernel of a chain, at most what its own reads and writes inside the chain take."""
    held = losses.join(links.select("activity", "saved_ns"), on="activity", maintain_order="left")
    part = (pl.col("saved_ns") / pl.col("time_ns").sum().over("activity")).clip(upper_bound=1)
    return held.with_columns(time_ns=pl.col("time_ns") * part).drop("saved_ns")


def _chains(case: Case, links: pl.DataFrame) -> pl.DataFrame:
    """Kinds of chains, largest saving first: ops (in words), count, saved_bytes, and step, start_ns and end_ns of the longest."""
    kernels = case.kernels.select("activity", "number", "start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    members = links.join(kernels, on="activity", maintain_order="left")
    words = pl.col("op_name").head(MOST_OPS).str.strip_prefix("aten::").str.join(ARROW)
    each = members.group_by("chain", maintain_order=True).agg(
        pl.when(pl.len() > MOST_OPS).then(words + f"{ARROW}…").otherwise(words).alias("ops"),
        pl.col("saved_bytes").sum(),
        pl.col("number").first(),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
    )
    return (
        each.sort(pl.col("end_ns") - pl.col("start_ns"), "start_ns", descending=[True, False])
        .group_by("ops", maintain_order=True)
        .agg(pl.len().alias("count"), pl.col("saved_bytes").sum(), pl.col("number", "start_ns", "end_ns").first())
        .sort(["saved_bytes", "ops"], descending=[True, False])
    )


def _evidence(case: Case, chains: pl.DataFrame) -> Iterable[Evidence]:
    for ops, count, saved, number, start_ns, end_ns in chains.iter_rows():
        yield Evidence(
            kind="chain",
            name=ops,
            rank=case.analysis.trace.meta.rank,
            step=number,
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            count=count,
            numbers={"saved_mb": round(saved / 1e6, 3)},
        )
