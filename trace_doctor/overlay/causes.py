"""The ledger laid out over time: what each interval of one GPU's window is charged to.

::

    sweep     |------gemm------|--gap--|--add--|
    charges   |-MFU-|-roofline-|-launch|-elem.-|
"""

from __future__ import annotations

import polars as pl

from trace_doctor.classifiers.intervals import cut, edges, top_class
from trace_doctor.classifiers.ledger import Account
from trace_doctor.classifiers.timeline import CLASSES, IDLE

PS = 1_000
"""Picoseconds of a nanosecond: a kernel is split among its causes finer than it is measured, so that no sum is rounded."""
_CHARGE = ["wall", "cause", "basis", "name", "op"]


def causes(account: Account) -> pl.DataFrame:
    """Disjoint slices in order that fill the window: start_ns, start_ps (beyond it), length_ps, wall, cause, basis, name, op.

    A kernel's share is split in the order of its charges. Time can't be drawn negative: what a kernel gains (precision gain, model
    error) is taken off its MFU or recompute, so those rows show less than the ledger has, together exactly as much.
    """
    charges = account.charges.select("activity", "start_ns", "time_ns", "class", *_CHARGE).with_row_index("place")
    idle = charges.filter(pl.col("class") == IDLE)
    drawn = pl.concat([_busy(account.timeline.pieces, charges), _whole(idle)])
    return drawn.sort("start_ns", "start_ps")


def _whole(idle: pl.DataFrame) -> pl.DataFrame:
    length_ps = (pl.col("time_ns") * PS).cast(pl.Int64)
    return idle.select("start_ns", *_CHARGE, start_ps=pl.lit(0, pl.Int64), length_ps=length_ps)


def _busy(pieces: pl.DataFrame, charges: pl.DataFrame) -> pl.DataFrame:
    """The time that activities hold: of several at once each has its even share, one after the other."""
    shares = charges.filter((pl.col("class") != IDLE) & (pl.col("time_ns") > 0) & pl.col("activity").is_not_null())
    shares = shares.with_columns(fraction=pl.col("time_ns") / pl.col("time_ns").sum().over("activity"))
    held = held_by(pieces).join(shares.select("activity", "place", "fraction", *_CHARGE), on="activity")
    run_ps = PS * (pl.col("end_ns") - pl.col("start_ns"))
    until = (pl.col("share") * pl.col("fraction")).cum_sum().over("run")
    is_last = pl.col("place").cum_count().over("run") == pl.len().over("run")
    ends = held.sort("run", "row", "place").with_columns(
        until_ps=pl.when(is_last).then(run_ps).otherwise((until * run_ps).round().cast(pl.Int64))
    )
    split = ends.with_columns(since_ps=pl.col("until_ps").shift(1, fill_value=0).over("run"))
    return split.select(
        pl.col("start_ns") + pl.col("since_ps") // PS,
        *_CHARGE,
        start_ps=pl.col("since_ps") % PS,
        length_ps=pl.col("until_ps") - pl.col("since_ps"),
    ).filter(pl.col("length_ps") > 0)


def held_by(pieces: pl.DataFrame) -> pl.DataFrame:
    """Who holds the time when something runs: start_ns, end_ns, run (disjoint, in order), activity, row and `share` of the run."""
    pieces = pieces.filter(pl.col("start_ns") < pl.col("end_ns")).with_row_index("row")
    grid = edges(pieces, CLASSES).with_columns(top=top_class(CLASSES))
    # lower classes come and go unseen: a run ends where the class on top changes, or one of its activities does
    changes = (pl.col("top") != pl.col("top").shift(1)) | (pl.col("class") == pl.col("top"))
    runs = (
        grid.with_columns(run=changes.fill_null(value=True).cum_sum())
        .group_by("run", maintain_order=True)
        .agg(pl.col("top").first(), start_ns=pl.col("at_ns").first(), length_ns=pl.col("length_ns").sum())
        .filter(pl.col("length_ns") > 0)
        .with_columns(end_ns=pl.col("start_ns") + pl.col("length_ns"))
    )
    columns = ["row", "activity", "start_ns", "end_ns"]
    parts = [
        cut(
            pieces.filter(pl.col("class") == c).select(columns),
            runs.filter(pl.col("top") == c),
            keep=["run"],
        )
        for c in range(CLASSES)
    ]
    return pl.concat(parts).with_columns(share=1 / pl.len().over("run"))
