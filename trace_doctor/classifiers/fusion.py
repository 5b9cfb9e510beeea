"""Chains of memory-bound kernels that pass a tensor on through memory and could be one kernel.

Two kernels are linked where the second follows the first on its stream with no kernel between them, both come from pointwise ops,
norms, softmaxes, reductions or copies of the dispatcher, and an input of the second has the shape of the first one's result. Fused,
that tensor is neither written nor read: its bytes twice over the bandwidth are what the link costs. Inputs that several members
read again are not counted, and where autograd keeps the tensor for backward its write stays: so it is an estimate from above of
one part and from below of another.
"""

from __future__ import annotations

import json
import math

import polars as pl

from trace_doctor.trace import Trace

FUSABLE_FAMILIES = ("elementwise", "normalisation", "softmax", "reduction", "layout", "random", "loss")
_NO_LINK = r"^aten::(cat|stack|index|embedding|sort|topk|_foreach|fill|zero|arange|normal|uniform|random|bernoulli)"
"""Their inputs are lists or look-ups, or there are none."""
_WIDTH_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
_LEAST_SAVED_NS = 100.0


def links(trace: Trace, kernels: pl.DataFrame, *, memory_bandwidth: float) -> pl.DataFrame:
    """One row per kernel of a chain: activity, chain (number), op_name, saved_bytes and saved_ns (of its own reads and writes).

    `kernels`: one GPU's compute kernels in the window, a row each, with `activity`, `stream`, `start_ns`, `kind`, `family`, `op_row`,
    `op_dtype` and `part`.
    """
    columns = ["activity", "stream", "start_ns", "family", "op_row", "op_dtype", "part"]
    rows = kernels.lazy().filter(pl.col("kind") == "compute").select(columns).collect()
    rows = rows.sort("stream", "start_ns", "activity")
    names = trace.ops["name"].gather(rows["op_row"]).cast(pl.String)
    can_fuse = (
        rows["family"].cast(pl.String).is_in(list(FUSABLE_FAMILIES)).fill_null(value=False)
        & names.str.starts_with("aten::").fill_null(value=False)
        & ~names.str.contains(_NO_LINK).fill_null(value=True)
    )
    rows = rows.with_columns(
        can_fuse=can_fuse,
        op_name=names,
        shapes=trace.ops["shapes"].gather(rows["op_row"]).cast(pl.String),
        thread=trace.ops["thread"].gather(rows["op_row"]),
    )
    before = [
        pl.col(name).shift(1).alias(f"{name}_before")
        for name in ("can_fuse", "stream", "thread", "op_row", "shapes", "op_dtype")
    ]
    pairs = rows.with_columns(*before).with_columns(
        adjacent=pl.col("can_fuse")
        & pl.col("can_fuse_before")
        & (pl.col("stream") == pl.col("stream_before"))
        & (pl.col("thread") == pl.col("thread_before"))
        & (pl.col("op_row") != pl.col("op_row_before"))
    )
    shared = _shared_elements(pairs.filter("adjacent").select("shapes_before", "shapes").unique())
    width = (
        pl.col("op_dtype_before").cast(pl.String).replace_strict(_WIDTH_BYTES, default=None, return_dtype=pl.Float64)
    )
    linked = pairs.join(shared, on=["shapes_before", "shapes"], how="left", maintain_order="left").with_columns(
        passed_bytes=pl.when("adjacent").then(pl.col("shared") * width).fill_null(0.0)
    )
    passed, part = pl.col("passed_bytes"), pl.col("part")
    chains = linked.with_columns(
        chain=(passed <= 0).cum_sum(),
        saved_bytes=(passed + passed.shift(-1, fill_value=0.0)) * part,
    ).with_columns(saved_ns=1e9 * pl.col("saved_bytes") / memory_bandwidth)
    in_chain = chains.filter((pl.len() > 1).over("chain"))
    worth = in_chain.filter((pl.col("saved_ns").sum() >= _LEAST_SAVED_NS).over("chain"))
    return worth.select("activity", "chain", "op_name", "saved_bytes", "saved_ns")


def _shared_elements(pairs: pl.DataFrame) -> pl.DataFrame:
    """Elements of the tensor that the second op of each pair of recorded shapes takes from the first; null: none."""
    rows = [(first, second, _passed(first, second)) for first, second in pairs.iter_rows()]
    schema = {"shapes_before": pl.String, "shapes": pl.String, "shared": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _passed(first: str | None, second: str | None) -> float | None:
    """Elements of the first op's result, where the second has an input of its shape.

    The result of a pointwise op, a norm or a softmax has the shape of its largest input; of a reduction, the same with a last
    dimension of one.
    """
    produced, inputs = _shapes(first), _shapes(second)
    if not produced:
        return None
    result = max(produced, key=math.prod)
    reduced = (*result[:-1], 1)
    if result in inputs:
        return float(math.prod(result))
    return float(math.prod(reduced)) if reduced in inputs else None


def _shapes(text: str | None) -> list[tuple[int, ...]]:
    try:
        dims = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return [
        tuple(dim)
        for dim in dims
        if isinstance(dim, list) and dim and all(isinstance(size, int) and 0 <= size < 1 << 40 for size in dim)
    ]
