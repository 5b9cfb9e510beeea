"""Rules for the memory wall: traffic that fusing would save."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from trace_doctor.fixes.case import Case
from trace_doctor.fixes.finding import Draft, largest
from trace_doctor.trace import matches

POINTWISE_KERNEL = (
    r"at::native::(\(anonymous namespace\)::)?(vectorized_|unrolled_)?elementwise_kernel|at::native::reduce_kernel"
)
"""What PyTorch runs for a single pointwise op or reduction; fused and foreach optimizers and compiled ones have other kernels."""
MOST_OF = 0.8
COMPILED_KERNEL = r"^triton_"
LAYOUT_KERNEL = (
    r"(?i)nchwTo(Nhwc|nchw)|nhwcToNchw|nchw_?to_?nhwc|nhwc_?to_?nchw"
    r"|batched_transpose|convertTensor|transformTensor|tensorTransform|SubTensorOp"
)
SOFTMAX_OP = r"^aten::_?softmax|^aten::_softmax_backward_data|Softmax"
SCORES_OP = r"^aten::(bmm|baddbmm)$"
"""What multiplies a batch of matrices: queries by keys. The last linear layer before a loss is no such op."""
LOSS_OP = r"(?i)^aten::(cross_entropy|nll_loss|_?log_softmax)|^(Nll|LogSoftmax|CrossEntropy|VocabParallelCrossEntropy)"
MANY_CLASSES_LOSS = ("loss", "softmax", "layout", "elementwise", "reduction")
FAMILIES = (
    "elementwise",
    "normalisation",
    "softmax",
    "reduction",
    "layout",
    "loss",
    "embedding",
    "optimizer",
    "random",
    "sort",
)
LONGEST_SEGMENT = 10
"""Kernels between the two matmuls of an attention that is written out: scale, mask, softmax, dropout, casts."""


def unfused_optimizer(case: Case) -> Iterable[Draft]:
    """An optimizer that loops over parameters: its many pointwise kernels, and the gaps between them."""
    kernels = case.kernels.select("name", "kind", "in_optimizer").filter("in_optimizer", pl.col("kind") == "compute")
    loop = kernels.filter(matches(kernels["name"], POINTWISE_KERNEL))
    if len(loop) < case.limits.few_kernels * case.steps or len(loop) < MOST_OF * len(kernels):
        return
    claims = case.lost_by(pl.col("in_optimizer"), pl.col("kind") != "communication")
    if case.is_worth_saying(claims):
        yield Draft(
            claims,
            "high: the kernels and the gaps between them lie in the optimizer's step",
            words=largest(claims) | {"per": case.per, "kernels": f"{len(loop) / case.steps:,.0f}"},
        )


def unfused_attention(case: Case) -> Iterable[Draft]:
    """Attention written out: what runs between two matmuls with a softmax among it goes through memory."""
    if not matches(case.kernels["op_name"], SCORES_OP).any():
        return
    columns = ["activity", "kind", "stream", "start_ns", "tensor", "family", "op_name"]
    rows = case.kernels.select(columns).filter(pl.col("kind") == "compute").sort("stream", "start_ns")
    segments = rows.with_columns(
        segment=pl.struct("stream", pl.col("tensor").cast(pl.UInt32).cum_sum()),
        is_softmax=(pl.col("family") == "softmax") | matches(rows["op_name"], SOFTMAX_OP),
        opens=matches(rows["op_name"], SCORES_OP),
    )
    between = segments.filter(~pl.col("tensor"))
    borders = segments.filter("tensor").select("segment", "opens")
    attends = (
        between.group_by("segment")
        .agg(pl.col("is_softmax").any(), kernels=pl.len())
        .join(borders, on="segment")
        .filter("is_softmax", "opens", pl.col("kernels") <= LONGEST_SEGMENT)
    )
    members = between.join(attends, on="segment", how="semi")["activity"]
    claims = case.lost(pl.col("activity").is_in(members.implode()), ~pl.col("is_idle"))
    if case.is_worth_saying(claims):
        softmaxes = between.filter("is_softmax").join(attends, on="segment", how="semi")
        yield Draft(
            claims,
            "high: softmax and masks run as kernels of their own between the two matmuls",
            words=largest(claims) | {"per": case.per, "kernels": f"{len(softmaxes) / case.steps:,.0f}"},
        )


def unfused_loss(case: Case) -> Iterable[Draft]:
    """The loss over the logits of a large vocabulary, in kernels that each pass over all of them."""
    family, in_loss = pl.col("family"), matches(case.kernels["op_name"], LOSS_OP)
    of_loss = case.lost_by((family == "loss") | (in_loss & family.is_in(MANY_CLASSES_LOSS)))
    claims = of_loss.filter(pl.col("wall") == "memory", ~pl.col("is_idle"))
    if case.is_weighty(claims):
        yield Draft(claims, "medium: the bytes are modelled from shapes", words=largest(claims))


def layout_conversion(case: Case) -> Iterable[Draft]:
    """Kernels that turn NCHW into NHWC and back around convolutions."""
    claims = case.lost(matches(case.charges["name"], LAYOUT_KERNEL), ~pl.col("is_idle"))
    if case.is_worth_saying(claims):
        count = claims["activity"].n_unique() / case.steps
        yield Draft(
            claims,
            "high: the kernels do nothing else",
            words=largest(claims) | {"per": case.per, "kernels": f"{count:,.0f}"},
        )


def memory_bound(case: Case) -> Iterable[Draft]:
    """Traffic of a family of kernels at the speed of memory, a finding a family."""
    for family in FAMILIES:
        claims = case.caused(family)
        if case.is_worth_saying(claims):
            estimated = float(claims.filter(pl.col("basis") == "estimated")["time_ns"].sum()) > 0.5 * float(
                claims["time_ns"].sum()
            )
            yield Draft(
                claims,
                "low: the bytes are not known, the kind of kernel is"
                if estimated
                else "medium: bytes modelled from shapes, at the bandwidth of the memory",
                words=largest(claims) | {"family": family},
                variant=_memory_variant(case, family),
            )


def poor_access(case: Case) -> Iterable[Draft]:
    """Kernels that took longer than their bytes explain; most of it in compiled ones is not for torch.compile to mend."""
    claims = case.caused("poor access pattern")
    if case.is_worth_saying(claims):
        total_ns = float(claims["time_ns"].sum())
        compiled = claims.filter(matches(claims["name"], COMPILED_KERNEL))
        yield Draft(
            claims,
            "low: what the modelled bytes don't explain",
            words=largest(claims),
            variant="compiled" if float(compiled["time_ns"].sum()) > total_ns / 2 else "",
        )


def _memory_variant(case: Case, family: str) -> str:
    if family in ("embedding", "layout", "optimizer", "random", "sort"):
        return family
    return "compiled" if case.is_compiled else ""
