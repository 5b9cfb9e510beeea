"""What the numbers rest on, and what was not judged."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.classifiers.timeline import COMPUTE, TENSOR
from trace_doctor.report import Abstained, Coverage, Trust
from trace_doctor.trace import Trace


def coverage_of(analyses: Sequence[Analysis], traces: Sequence[Trace]) -> Coverage:
    """How much of the kernels and their time is linked, shaped and modelled, and whether idle can be believed."""
    columns = ["class", "kind", "call", "exclusive_ns", "flops", "bytes_moved", "has_shapes"]
    pieces = pl.concat([a.account.timeline.pieces.select(columns) for a in analyses])
    kernels = pieces.filter(pl.col("class") <= COMPUTE)
    tensor = kernels.filter(pl.col("class") == TENSOR)
    known = pl.col("flops").is_not_null() | pl.col("bytes_moved").is_not_null()
    linked = pieces.filter(pl.col("kind").is_in(["compute", "communication"]))["call"]
    order: tuple[Trust, ...] = ("good", "partial", "poor")
    trust = order[max(order.index(a.window.trust) for a in analyses)]
    return Coverage(
        kernels_linked_share=linked.is_not_null().mean(),  # type: ignore[arg-type]
        shapes_share=_share_of_time(tensor, pl.col("has_shapes")),
        modelled_share=_share_of_time(kernels, known),
        tables_missing=sorted({table for trace in traces for table in trace.meta.tables_missing}),
        abstained=_abstained(analyses),
        trust=trust,
        why=list(dict.fromkeys(why for a in analyses for why in a.window.why)),
    )


def _share_of_time(pieces: pl.DataFrame, is_so: pl.Expr) -> float | None:
    total, so = float(pieces["exclusive_ns"].sum()), float(pieces.filter(is_so)["exclusive_ns"].sum())
    return so / total if total > 0 else None


def _abstained(analyses: Sequence[Analysis]) -> list[Abstained]:
    skipped = [
        Abstained(
            code="dependency",
            why="waits of one stream for another are not recorded, so a kernel that waited for a collective is 'queued but not started'",
        )
    ]
    if any(a.account.timeline.communication_ns for a in analyses):
        skipped.append(
            Abstained(
                code="straggler",
                why="ranks are not compared yet: waiting for a slow rank and a slow link look alike from one",
            )
        )
    return skipped
