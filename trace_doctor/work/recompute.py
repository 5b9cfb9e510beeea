"""Which ops run a forward pass again inside backward: activation checkpointing. Their FLOPs are hardware's, not the model's.

The signs, learned from recordings of both checkpoint variants of torch 2.13:

- re-entrant: ops inside `CheckpointFunctionBackward` and in no backward node nested there are the forward run again; the
  engine that it starts evaluates nested nodes;
- not re-entrant: the ops stand under the first backward node that unpacks a saved tensor, and carry a `Sequence number` of
  a forward op. Double backward numbers its ops too, but there the outermost op did not run outside backward with these shapes
  (it did where a bare torch.mm has square inputs: a known false positive);
- a fused attention's forward inside any backward node: no gradient formula calls it.
"""

from __future__ import annotations

import polars as pl

from trace_doctor.work.ancestors import at, is_one_of, named, nearest

_BACKWARD = r"^autograd::engine::evaluate_function: |Backward\d*$|^<backward op>$"
_CHECKPOINT = r"Checkpoint\w*Backward\d*$"


def find(ops: pl.DataFrame, attention_forward: list[str]) -> pl.Series:
    """Boolean per op: it, or an op around it, is forward work done again. `attention_forward`: names of fused attention ops."""
    parent, names = ops["parent"], ops["name"]
    is_backward = named(names, _BACKWARD)
    node = nearest(parent, is_backward)
    in_checkpoint = at(named(names, _CHECKPOINT), node)
    is_forward = (ops["sequence"] >= 0) & ~(ops["forward_thread"].fill_null(0) > 0) & ~is_backward
    runs_again = _inside(node, nearest(parent, is_forward)) & _also_ran_forward(ops, node, is_backward)
    attends = _inside(node, nearest(parent, is_one_of(names, attention_forward)))
    found = in_checkpoint.fill_null(value=False) | runs_again | attends
    return (found & node.is_not_null() & ~is_backward).alias("recompute")


def passes(ops: pl.DataFrame) -> pl.Series:
    """For each op the pass of training that it belongs to, "forward" or "backward"; null for others (optimizer, evaluation).

    Backward is what stands in a backward node, forward what autograd numbered elsewhere. Recomputed forward work counts as backward.
    """
    is_backward = named(ops["name"], _BACKWARD)
    numbered = (ops["sequence"] >= 0) & ~(ops["forward_thread"].fill_null(0) > 0)
    backward = nearest(ops["parent"], is_backward).is_not_null()
    forward = nearest(ops["parent"], numbered).is_not_null()
    found = pl.when("backward").then(pl.lit("backward")).when("forward").then(pl.lit("forward"))
    return pl.DataFrame({"backward": backward, "forward": forward}).select(found.alias("pass"))["pass"]


def _inside(node: pl.Series, row: pl.Series) -> pl.Series:
    """Whether the op at `row` lies in the same backward node as this one."""
    return (at(node, row) == node).fill_null(value=False)


def _also_ran_forward(ops: pl.DataFrame, node: pl.Series, is_backward: pl.Series) -> pl.Series:
    """Whether the outermost op below the backward node also ran outside backward, outermost as well, with the same shapes."""
    parent = ops["parent"]
    outermost = nearest(parent, at(is_backward, parent))
    in_dispatcher = at(named(ops["name"], "^aten::"), parent).fill_null(value=False)
    signature = ops.select("name", "shapes")
    forward = signature.filter(node.is_null() & ~in_dispatcher).unique().with_columns(known=True)
    known = signature.join(forward, on=["name", "shapes"], how="left", nulls_equal=True, maintain_order="left")["known"]
    return at(known, outermost).fill_null(value=False)
