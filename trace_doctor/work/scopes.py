"""What a kernel belongs to in the user's own terms: the op that launched it, the nn.Module around it, or the annotation."""

from __future__ import annotations

import polars as pl

from trace_doctor.loaders.nesting import nest
from trace_doctor.options import GroupBy
from trace_doctor.trace import Trace
from trace_doctor.work.ancestors import at, nearest

MODULE_PREFIX = "nn.Module: "
MODULE_INSTANCE = r"_\d+$"
"""The profiler numbers the modules of a class in the order in which they first ran."""
_STEP = r"^ProfilerStep#\d+$"
_NO_ANNOTATION = r"^\w+::|Backward\d*$|^triton_|^Torch-Compiled|^CompiledF|^record_param_comms|^ProfilerStep#\d+$"
"""Ops of the dispatcher, autograd nodes, compiled code."""


def scope(trace: Trace, by: GroupBy) -> pl.Series:
    """The name of each activity's group (Categorical), null where the trace does not tell.

    "op": the innermost op around the launch; "module": the innermost `nn.Module: ...` frame (`with_modules` or `with_stack`);
    "annotation": the innermost user annotation but `ProfilerStep#N`. A backward kernel belongs to the module or annotation of the
    forward op that has its autograd sequence number.
    """
    if by == "kernel":
        return trace.activities["name"]
    if by == "op":
        return at(trace.ops["name"], trace.activities["op"])
    ranges = _ranges(trace, by)
    points = _points(trace)
    _, around = nest(ranges, points.select("thread", "start_ns", duration_ns=pl.lit(0, pl.Int64)))
    return at(ranges["name"], around)


def _ranges(trace: Trace, by: GroupBy) -> pl.DataFrame:
    columns = ["thread", "start_ns", "duration_ns", "name"]
    text = pl.col("name").cast(pl.String)
    own = trace.annotations.filter(pl.col("kind") != "overhead")
    if by == "module":
        return own.filter(text.str.starts_with(MODULE_PREFIX)).select(columns)
    # older profilers record the user's own ranges among the ops
    among_ops = trace.ops.filter(~text.str.contains(_NO_ANNOTATION))
    own = own.filter((pl.col("kind") == "user") & ~text.str.contains(_STEP))
    return pl.concat([own.select(columns), among_ops.select(columns)])


def _points(trace: Trace) -> pl.DataFrame:
    """Where and when each activity was asked for: of the launch, or of the forward op whose backward launched it."""
    forward = at(_forward_op(trace.ops), trace.activities["op"])
    call = trace.activities["call"]
    return pl.DataFrame(
        {
            "thread": at(trace.ops["thread"], forward).zip_with(forward.is_not_null(), at(trace.calls["thread"], call)),
            "start_ns": at(trace.ops["start_ns"], forward).zip_with(
                forward.is_not_null(), at(trace.calls["start_ns"], call)
            ),
        }
    ).with_columns(pl.col("start_ns").fill_null(-1))


def _forward_op(ops: pl.DataFrame) -> pl.Series:
    """For each op inside a backward node, the first op that recorded the node's sequence number forward; else null."""
    is_node = (ops["forward_thread"].fill_null(0) > 0) & (ops["sequence"].fill_null(-1) >= 0)
    node = nearest(ops["parent"], is_node)
    forward = ops.filter(~is_node & (pl.col("sequence") >= 0)).group_by("sequence").agg(forward=pl.col("op").min())
    found = ops.select("sequence").join(forward, on="sequence", how="left", maintain_order="left")["forward"]
    return at(found, node)
