"""The strip: what held one GPU, moment by moment, over one step; its areas are the ledger of that step."""

from __future__ import annotations

import polars as pl

from trace_doctor.classifiers.intervals import cut, edges, share_out, top_class
from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.classifiers.timeline import CLASSES, IDLE
from trace_doctor.report import WALLS, Layer, Strip

MOST_SEGMENTS = 2_000


def strip_of(analysis: Analysis, *, most: int = MOST_SEGMENTS) -> Strip | None:
    """The step of median length of one GPU, or its whole window where there are no steps, as at most `most` segments.

    Neighbours of the same name and cause are one segment. Where there are too many, neighbours shorter than a bin are merged bin by
    bin, and `merged_below_ns` says how long a bin is. Negative charges (model error, precision gain) can't be drawn and are left out.
    """
    step = _median(analysis.spans)
    if step.is_empty():
        return None
    number, start_ns, end_ns = step.select("number", "start_ns", "end_ns").row(0)
    length_ns = end_ns - start_ns
    parts = _parts(analysis, step)
    if parts.is_empty():
        return None
    parts = _stretches(parts)
    stretches = parts.group_by("stretch").agg(pl.col("start_ns").min(), pl.col("time_ns").sum()).sort("stretch")
    segment, width_ns = stretches["stretch"], 0
    # b bins leave at most b long segments and as many merged ones, one more for each border that a long one makes in a bin
    for bins in (most, most // 2, most // 4):
        if segment.n_unique() <= most:
            break
        width_ns = max(length_ns // bins, 1)
        segment = _merged(stretches, width_ns, start_ns)
    whole = parts.join(stretches.select("stretch", segment=segment), on="stretch", maintain_order="left")
    return _strip(
        analysis, whole, number=number, start_ns=start_ns, length_ns=length_ns, merged_below_ns=width_ns or None
    )


def _median(spans: pl.DataFrame) -> pl.DataFrame:
    """The span of median length, the shorter of two."""
    ranked = spans.sort(pl.col("end_ns") - pl.col("start_ns"), "number")
    return ranked.slice((len(ranked) - 1) // 2 if len(ranked) else 0, 1)


def _parts(analysis: Analysis, step: pl.DataFrame) -> pl.DataFrame:
    """Parts of the step by who held it: start_ns, wall, cause, name, time_ns; several of the same start share the time to the next."""
    account = analysis.account
    number = step["number"][0]
    charges = account.charges.filter(pl.col("time_ns") > 0)
    pieces = account.timeline.pieces.select("number", "start_ns", "end_ns", "class", "activity")
    pieces = pieces.filter(pl.col("number").eq_missing(number))
    held = _held(pieces, step)
    share = pl.col("time_ns") / pl.col("time_ns").sum().over("activity")
    mix = charges.filter(pl.col("class") != IDLE, pl.col("activity").is_not_null()).select(
        "activity", "wall", "cause", "name", share=share
    )
    busy = held.join(mix, on="activity").with_columns(time_ns=pl.col("held_ns") * pl.col("share"))
    idle = charges.filter(pl.col("class") == IDLE, pl.col("number").eq_missing(number))
    columns = ["start_ns", "wall", "cause", "name", "time_ns"]
    parts = pl.concat([busy.select(columns), idle.select(columns)])
    # the few distinct contents in the order of their words, so that a moment's are compared as numbers
    contents = parts.select("wall", "cause", "name").unique()
    ranked = contents.sort(pl.all().cast(pl.String)).with_row_index("content")
    return parts.join(ranked, on=["wall", "cause", "name"], nulls_equal=True, maintain_order="left")


def _held(pieces: pl.DataFrame, step: pl.DataFrame) -> pl.DataFrame:
    """start_ns, activity, held_ns: the moments in which nothing of a higher class ran, shared among those of the same class."""
    background = step.select("start_ns", "end_ns", pl.lit(IDLE, pl.Int32).alias("class"))
    grid = edges(pl.concat([pieces.select("start_ns", "end_ns", "class"), background]), CLASSES + 1)
    grid = grid.with_columns(top=top_class(CLASSES + 1)).filter(pl.col("length_ns") > 0)
    held = [
        cut(
            pieces.filter(pl.col("class") == c).select("start_ns", "end_ns", "activity"),
            grid.filter(pl.col("top") == c).select(
                start_ns="at_ns", end_ns=pl.col("at_ns") + pl.col("length_ns"), open=f"open_{c}"
            ),
            keep=["open"],
        )
        for c in range(CLASSES)
    ]
    return pl.concat(held).select(
        "start_ns", "activity", held_ns=(pl.col("end_ns") - pl.col("start_ns")) / pl.col("open")
    )


def _stretches(parts: pl.DataFrame) -> pl.DataFrame:
    """The parts in order of time, with the `stretch` each belongs to: neighbouring moments of the same main name and cause."""
    moments = _main(parts, "start_ns").select("start_ns", stretch=pl.col("content").rle_id())
    return parts.join(moments, on="start_ns", maintain_order="left")


def _main(parts: pl.DataFrame, by: str) -> pl.DataFrame:
    """The longest part of each `by`, in its order; of several as long the last by their words."""
    ranked = parts.select(by, "time_ns", "content").sort(by, "time_ns", "content")
    return ranked.unique(by, keep="last", maintain_order=True)


def _merged(stretches: pl.DataFrame, width_ns: int, start_ns: int) -> pl.Series:
    """Of each stretch its segment: neighbours shorter than a bin of `width_ns` share one where they start in the same bin."""
    is_long = pl.col("time_ns") >= width_ns
    place = pl.when(is_long).then("stretch").otherwise((pl.col("start_ns") - start_ns) // width_ns)
    return stretches.select(pl.struct(long=is_long, place=place).rle_id()).to_series()


def _strip(
    analysis: Analysis,
    whole: pl.DataFrame,
    *,
    number: int | None,
    start_ns: int,
    length_ns: int,
    merged_below_ns: int | None,
) -> Strip:
    named = whole.select("content", main=pl.coalesce(pl.col("name", "cause").cast(pl.String))).unique("content")
    mains = _main(whole, "segment").join(named, on="content").select("segment", "main")
    segments = (
        whole.group_by("segment")
        .agg(pl.col("start_ns").min(), stretches=pl.col("stretch").n_unique())
        .join(mains, on="segment")
        .sort("segment")
    )
    names = segments["main"].unique(maintain_order=True)
    order = pl.col("wall").replace_strict({wall: place for place, wall in enumerate(WALLS)}, return_dtype=pl.Int32)
    times = whole.group_by("wall", "cause", "segment").agg(pl.col("time_ns").sum()).sort("segment", order, "cause")
    layers = (
        times.with_columns(time_ns=share_out(times.select("time_ns"), length_ns))
        .filter(pl.col("time_ns") > 0)
        .group_by("wall", "cause", maintain_order=True)
        .agg("segment", "time_ns")
        .sort(order, -pl.col("time_ns").list.sum(), "cause")
    )
    return Strip(
        rank=analysis.trace.meta.rank,
        device=analysis.trace.meta.devices[analysis.number].label,
        step=number,
        start_ns=start_ns,
        duration_ns=length_ns,
        merged_below_ns=merged_below_ns,
        segment_start_ns=(segments["start_ns"] - start_ns).to_list(),
        segment_stretches=segments["stretches"].to_list(),
        segment_name=segments["main"].replace_strict(names, range(len(names)), return_dtype=pl.Int64).to_list(),
        names=names.to_list(),
        layers=[
            Layer(wall=wall, cause=cause, segments=of, time_ns=time_ns)
            for wall, cause, of, time_ns in layers.select("wall", "cause", "segment", "time_ns").iter_rows()
        ],
    )
