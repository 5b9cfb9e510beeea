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
    contents, parts = _parts(analysis, step)
    if parts.is_empty():
        return None
    parts = _stretches(parts)
    stretches = parts.group_by("stretch", maintain_order=True).agg(pl.col("start_ns").first(), pl.col("time_ns").sum())
    segment, width_ns = stretches["stretch"], 0
    # b bins leave at most b long segments and as many merged ones, one more for each border that a long one makes in a bin
    for bins in (most, most // 2, most // 4):
        if segment[-1] < most:
            break
        width_ns = max(length_ns // bins, 1)
        segment = _merged(stretches, width_ns, start_ns)
    return _strip(
        analysis,
        parts.select("time_ns", "content", segment=segment.gather(parts["stretch"])),
        stretches.select("start_ns", segment=segment),
        contents,
        number=number,
        start_ns=start_ns,
        length_ns=length_ns,
        merged_below_ns=width_ns or None,
    )


def _median(spans: pl.DataFrame) -> pl.DataFrame:
    """The span of median length, the shorter of two."""
    ranked = spans.sort(pl.col("end_ns") - pl.col("start_ns"), "number")
    return ranked.slice((len(ranked) - 1) // 2 if len(ranked) else 0, 1)


def _parts(analysis: Analysis, step: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What the step's parts are of (wall, cause, name), and the parts: start_ns, time_ns, content (row of the first), in order of start.

    Several of the same start share the time to the next.
    """
    number, words = step["number"][0], ["wall", "cause", "name"]
    pieces = analysis.account.timeline.pieces.select("number", "start_ns", "end_ns", "class", "activity")
    held = _held(pieces.filter(pl.col("number").eq_missing(number)).drop("number"))
    charges = analysis.account.charges.select("class", "number", "activity", "start_ns", "time_ns", *words)
    is_idle = pl.col("class") == IDLE
    of_step = pl.when(is_idle).then(pl.col("number").eq_missing(number)).otherwise(_between(held["activity"]))
    charges = charges.filter(pl.col("time_ns") > 0, of_step)
    # the few distinct contents in the order of their words, so that a moment's are compared as numbers
    contents = charges.select(words).unique().sort(pl.all().cast(pl.String)).with_row_index("content")
    coded = charges.select(words).join(contents, on=words, how="left", nulls_equal=True, maintain_order="left")
    charges = charges.drop("number", *words).with_columns(coded["content"])
    idle = charges.filter(is_idle).select("start_ns", "time_ns", "content")
    busy = charges.filter(~is_idle).select("activity", "time_ns", "content")
    busy = _charged(held, busy, activities=len(analysis.trace.activities))
    return contents, pl.concat([busy, idle]).sort("start_ns", maintain_order=True)


def _between(activities: pl.Series) -> pl.Expr:
    """Whether a charge can be of one of these activities."""
    return pl.col("activity").is_between(pl.lit(activities.min()), pl.lit(activities.max()))


def _held(pieces: pl.DataFrame) -> pl.DataFrame:
    """start_ns, activity, time_ns: the moments in which nothing of a higher class ran, shared among those of the same class."""
    # most run alone, and hold all of their time
    reach = pl.col("end_ns").cum_max().shift(1)
    begins = (pl.col("start_ns") >= reach).fill_null(value=True)
    is_alone = pieces.select(begins & begins.shift(-1, fill_value=True)).to_series()
    alone, others = pieces.filter(is_alone, pl.col("start_ns") < pl.col("end_ns")), pieces.filter(~is_alone)
    grid = edges(others, CLASSES).with_columns(top=top_class(CLASSES)).filter(pl.col("length_ns") > 0)
    held = [
        cut(
            others.filter(pl.col("class") == c).select("start_ns", "end_ns", "activity"),
            grid.filter(pl.col("top") == c).select(
                start_ns="at_ns", end_ns=pl.col("at_ns") + pl.col("length_ns"), open=f"open_{c}"
            ),
            keep=["open"],
        )
        for c in range(CLASSES)
    ]
    whole = alone.select("start_ns", "end_ns", "activity", open=pl.lit(1, pl.Int32))
    return pl.concat([whole, *held]).select(
        "start_ns", "activity", time_ns=(pl.col("end_ns") - pl.col("start_ns")) / pl.col("open")
    )


def _charged(held: pl.DataFrame, charges: pl.DataFrame, *, activities: int) -> pl.DataFrame:
    """What each of so many activities held (`_held`) by what it is charged with (activity, time_ns, content), as parts."""
    columns = ["start_ns", "time_ns", "content"]
    charges = charges.sort("activity", maintain_order=True)
    goes_on = charges["activity"] == charges["activity"].shift(-1)
    is_one = ~(goes_on | goes_on.shift(1)).fill_null(value=False)
    only = charges.filter(is_one)
    several = charges.filter(~is_one).select(
        "activity", "content", share=pl.col("time_ns") / pl.col("time_ns").sum().over("activity")
    )
    # an activity with one charge finds it by its place, without a join
    content = pl.repeat(None, activities, dtype=pl.UInt32, eager=True).scatter(only["activity"], only["content"])
    held = held.with_columns(content=content.gather(held["activity"]))
    mixed = held.filter(pl.col("content").is_null()).drop("content").join(several, on="activity")
    return pl.concat(
        [
            held.filter(pl.col("content").is_not_null()).select(columns),
            mixed.with_columns(time_ns=pl.col("time_ns") * pl.col("share")).select(columns),
        ]
    )


def _stretches(parts: pl.DataFrame) -> pl.DataFrame:
    """The parts, in order of start, with the `stretch` each belongs to: neighbouring moments of the same main content."""
    begins = (parts["start_ns"] != parts["start_ns"].shift(1)).fill_null(value=True)
    moment = begins.cum_sum() - 1
    is_shared = ~(begins & begins.shift(-1).fill_null(value=True))
    shared = _main(parts.with_columns(moment=moment).filter(is_shared), "moment")
    mains = parts["content"].filter(begins).scatter(shared["moment"], shared["content"])
    return parts.with_columns(stretch=mains.rle_id().gather(moment).set_sorted())


def _main(parts: pl.DataFrame, by: str) -> pl.DataFrame:
    """The longest part of each `by`, in its order; of several as long the last by their words."""
    ranked = parts.select(by, "time_ns", "content").sort(by, "time_ns", "content")
    return ranked.unique(by, keep="last", maintain_order=True)


def _merged(stretches: pl.DataFrame, width_ns: int, start_ns: int) -> pl.Series:
    """Of each stretch its segment: neighbours shorter than a bin of `width_ns` share one where they start in the same bin."""
    is_long = pl.col("time_ns") >= width_ns
    # a long one's place is its own, below those of the bins
    place = (
        pl.when(is_long)
        .then(-1 - pl.col("stretch").cast(pl.Int64))
        .otherwise((pl.col("start_ns") - start_ns) // width_ns)
    )
    return stretches.select(segment=place.rle_id()).to_series()


def _strip(
    analysis: Analysis,
    parts: pl.DataFrame,
    stretches: pl.DataFrame,
    contents: pl.DataFrame,
    *,
    number: int | None,
    start_ns: int,
    length_ns: int,
    merged_below_ns: int | None,
) -> Strip:
    """`parts` (segment, content, time_ns) and `stretches` (segment, start_ns) in order of time."""
    sums = parts.group_by("segment", "content").agg(pl.col("time_ns").sum(), longest_ns=pl.col("time_ns").max())
    mains = _main(sums.select("segment", "content", time_ns="longest_ns"), "segment")
    named = contents.select("content", main=pl.coalesce(pl.col("name", "cause").cast(pl.String)))
    segments = (
        stretches.group_by("segment")
        .agg(pl.col("start_ns").min(), stretches=pl.len())
        .join(mains.join(named, on="content").select("segment", "main"), on="segment")
        .sort("segment")
    )
    names = segments["main"].unique(maintain_order=True)
    order = pl.col("wall").replace_strict({wall: place for place, wall in enumerate(WALLS)}, return_dtype=pl.Int32)
    of_rows = sums.join(contents, on="content").group_by("wall", "cause", "segment").agg(pl.col("time_ns").sum())
    times = of_rows.sort("segment", order, "cause")
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
