"""The common shape of what classifiers return: one row for each part of a nanosecond's way to the ledger."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from trace_doctor.loaders.sparing import keep
from trace_doctor.report import Basis, Wall
from trace_doctor.work.kernels import FAMILIES

SCHEMA = {
    "class": pl.Int32,
    "number": pl.Int64,
    "wall": pl.Categorical,
    "cause": pl.Categorical,
    "basis": pl.Categorical,
    "time_ns": pl.Float64,
    "name": pl.Categorical,
    "op": pl.Categorical,
    "activity": pl.UInt32,
    "start_ns": pl.Int64,
}
"""class: of the sweep (timeline.py), in which the charge is rounded; number: step; name and op: whom to show for it;
activity: the one charged, of a gap the one that ends it; start_ns: of the activity, or of the stretch of idle time."""


class Row(NamedTuple):
    """A row of the ledger: wall, cause, and how its time is known."""

    wall: Wall
    cause: str
    basis: Basis


MFU = Row("mfu", "model FLOPs", "modelled")
RECOMPUTE = Row("recompute", "recompute", "modelled")
PRECISION = Row("compute", "precision", "modelled")
PRECISION_GAIN = Row("compute", "precision gain", "modelled")
BELOW_ROOFLINE = Row("compute", "below the roofline", "residual")
LOW_INTENSITY = Row("memory", "low arithmetic intensity", "modelled")
NO_FLOPS = Row("unattributed", "tensor work without FLOPs", "measured")
MODEL_ERROR = Row("unattributed", "model error", "residual")
TOO_SHORT = Row("small_kernels", "too short to fill the GPU", "modelled")
POOR_ACCESS = Row("memory", "poor access pattern", "modelled")
UNKNOWN_KERNEL = Row("unattributed", "unknown kernel", "measured")
GRAPH_CONTENTS = Row("unattributed", "graph contents", "measured")
PIPELINE_BUBBLE = Row("communication", "pipeline bubble", "measured")
WAITING_OR_SLOW = Row("communication", "waiting or slow", "residual")
PEER_COPY = Row("communication", "peer-to-peer copy", "measured")
COPY = Row("memory", "copy", "measured")
OFFLOAD = Row("memory", "offload", "measured")
INPUT_TRANSFER = Row("host", "input transfer", "measured")
SYNCHRONISATION = Row("host", "synchronisation", "measured")
LAUNCH_BOUND = Row("small_kernels", "launch-bound", "measured")
BLOCKED_CALL = Row("host", "launch call blocked", "measured")
DEVICE_GAP = Row("small_kernels", "device-side gap", "measured")
NOT_STARTED = Row("unattributed", "queued but not started", "measured")
ALLOCATOR = Row("memory", "allocator", "measured")
INITIALISATION = Row("host", "initialisation", "measured")
PROFILER = Row("unattributed", "profiler overhead", "measured")
HOST_CODE = Row("host", "host code", "measured")
NO_HOST_EVENTS = Row("unattributed", "no host events", "measured")


def of_class(pieces: pl.DataFrame, number: int, *more: str) -> pl.DataFrame:
    """The pieces of one class of the sweep, with the columns that `charge` reads and some more."""
    columns = ("class", "number", "name", "op_name", "activity", "start_ns", "exclusive_ns")
    return pieces.select(*columns, *more).filter(pl.col("class") == number)


def charge(
    frame: pl.DataFrame, row: Row, time_ns: str, *, cause: str | None = None, basis: str | None = None
) -> pl.DataFrame:
    """Charges of column `time_ns` of `frame` to one row; `cause` (family of the kernel) and `basis` may name columns that vary it."""
    frame = keep(frame, pl.col(time_ns) != 0)
    return frame.select(
        "class",
        "number",
        wall=pl.lit(row.wall, pl.Categorical),
        cause=_categorical(frame[cause]) if cause else pl.lit(row.cause, pl.Categorical),
        basis=pl.col(basis).cast(pl.Categorical) if basis else pl.lit(row.basis, pl.Categorical),
        time_ns=pl.col(time_ns).cast(pl.Float64),
        name=pl.col("name").cast(pl.Categorical),
        op=pl.col("op_name").cast(pl.Categorical),
        activity="activity",
        start_ns="start_ns",
    )


def _categorical(families: pl.Series) -> pl.Series:
    """Families of kernels as Categorical; each word is read once."""
    return pl.Series(FAMILIES, dtype=pl.Categorical).gather(families.to_physical())
