"""Model FLOPs and bytes of every kernel, from the shapes of the op that launched it.

An op's work is computed once per signature by the formula that `formulas.toml` names, and split by duration among the
kernels that the op launched. Only the innermost op counts: aten::linear > aten::addmm is one matmul.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from types import ModuleType
from typing import Any

import polars as pl

from trace_doctor.trace import Trace
from trace_doctor.work import attention, convolution, layers, matmul, memory_ops, recompute
from trace_doctor.work.ancestors import at, is_one_of, named, nearest
from trace_doctor.work.shapes import DTYPES, Call, Work, parse

Formula = Callable[[Call], Work | None]

_MODULES: dict[str, ModuleType] = {
    "matmul": matmul,
    "convolution": convolution,
    "attention": attention,
    "layers": layers,
    "memory_ops": memory_ops,
}
_RECORDED = ["name", "shapes", "dtypes", "concrete"]
_PARTNER = ["partner_shapes", "partner_dtypes", "partner_concrete"]
_SIGNATURE = [*_RECORDED, *_PARTNER, "mask"]
_WORK_SCHEMA = {
    "flops": pl.Float64,
    "flops_most": pl.Float64,
    "known_bytes": pl.Float64,
    "untyped_elements": pl.Float64,
    "op_dtype": pl.String,
    "is_tensor_op": pl.Boolean,
}
_NO_WORK = (None,) * len(_WORK_SCHEMA)
_WIDTHS = {word: width for width, word in DTYPES.values() if word} | {"tf32": 4}
_MOST_FLOPS = 1e21
"""No op does more, for it would hold the fastest GPU for a day: its shapes are not what the profiler saw."""
_FEWER_MULTIPLICATIONS = "(?i)winograd|fft"
_NOT_ONE_OP = r"^aten::|Backward\d*$|^autograd::|^CompiledFunction|^Torch-Compiled|^## |^ProfilerStep|^<"
"""Ops that no general reading of their inputs fits: torch's own, nodes whose inputs are gradients, and what holds a whole graph."""
# Flags of flash-attention 2 (dropout, causal, since 2.3 local before three or, backward, two more) and of 3 (causal, local).
_FLAG, _TRAITS = "(true|false)", "<.*?>, (?:true|false), "
_MASKED = (
    rf"flash_fwd\w*{_TRAITS}{_FLAG}, {_FLAG}(?:, (?:true|false)){{3}}",
    rf"flash_bwd\w*{_TRAITS}{_FLAG}, {_FLAG}(?:, (?:true|false)){{2}}",
    rf"CollectiveMainloop(?:Fwd|Bwd)\w*<.*?arch::Sm\d+, {_FLAG}, {_FLAG}",
    rf"flash_(?:fwd|bwd)\w*{_TRAITS}{_FLAG}()",
)
_NO_WORK = (None,) * len(_WORK_SCHEMA)
_WIDTHS = {word: width for width, word in DTYPES.values() if word} | {"tf32": 4}
_FEWER_MULTIPLICATIONS = "(?i)winograd|fft"
_NOT_ONE_OP = r"^aten::|Backward\d*$|^autograd::|^CompiledFunction|^Torch-Compiled|^## |^ProfilerStep|^<"
"""Ops that no general reading of their inputs fits: torch's own, nodes whose inputs are gradients, and what holds a whole graph."""
# Flags after the traits of flash-attention 2 (dropout, causal, since 2.3 local) and after the architecture of 3 (causal, local).
_FLASH_2 = r"flash_(?:fwd|bwd)\w*<.*?>, (?:true|false), (true|false), (true|false)((?:, (?:true|false)){3,})"
_FLASH_2_OLD = r"flash_(?:fwd|bwd)\w*<.*?>, (?:true|false), (true|false)"
_FLASH_3 = r"CollectiveMainloop(?:Fwd|Bwd)\w*<.*?arch::Sm\d+, (true|false), (true|false)"


def estimate(trace: Trace) -> pl.DataFrame:
    """What each activity had to do, a row for each in their order.

    `flops` are those of tensor kernels, `flops_most` what unknown ones cannot exceed, `bytes_moved` what a compute kernel must
    move at least; null is unknown. `op_dtype` is the op's dtype word ("bf16"; float32 says "fp32", whether it ran as TF32 only
    the kernel's name tells). `recompute`: forward work done again in backward. `pass`: "forward" or "backward" of training, null
    for others. `has_shapes`: an op around the launch recorded its inputs. `formula_op` and `op_row`: the op whose work this is.
    `multiplies_less`: a kernel of that op says Winograd or FFT, convolutions that do fewer multiplications than `flops` counts,
    in kernels that may have a plain name. Kernels of a CUDA graph get nothing, for the op around the launch is not theirs.
    Needs `linking.link` and `kernels.classify` to have run.
    """
    ops = trace.ops.select("op", "parent", "sequence", "forward_thread", *_RECORDED)
    launches = _launches(trace)
    works = _works(_told_by_others(ops, launches))
    works = pl.concat([works, _readable(ops, launches, works)])
    launches = _owners(launches, ops, works)
    shares = _split(launches.join(works, left_on="owner", right_on="op", how="left", maintain_order="left"))
    shares = _serve(shares, trace.activities["name"], ops["name"], works)
    again = recompute.find(ops, attention_forward())
    shapes = nearest(ops["parent"], ops["shapes"].is_not_null() & ~is_one_of(ops["shapes"], ["[]"]))
    return shares.select(
        "activity",
        "flops",
        "flops_most",
        "bytes_moved",
        "op_dtype",
        at(again, launches["op"]).fill_null(value=False).alias("recompute"),
        at(recompute.passes(ops), launches["op"]).alias("pass"),
        at(shapes, launches["op"]).is_not_null().alias("has_shapes"),
        at(ops["name"], launches["owner"]).cast(pl.String).alias("formula_op"),
        pl.col("owner").alias("op_row"),
        "multiplies_less",
    )


@cache
def formulas() -> tuple[dict[str, Formula], tuple[tuple[re.Pattern[str], Formula], ...]]:
    """The formulas of `formulas.toml`: by the op's name, and by a pattern of it."""
    by_name: dict[str, Formula] = {}
    by_pattern: list[tuple[re.Pattern[str], Formula]] = []
    for entry in _tables()["formula"]:
        formula = _formula(entry)
        by_name |= dict.fromkeys(entry.get("ops", []), formula)
        by_pattern += [(re.compile(pattern), formula) for pattern in entry.get("patterns", [])]
    return by_name, tuple(by_pattern)


@cache
def _tables() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(resources.files("trace_doctor.work").joinpath("formulas.toml").read_text(encoding="utf-8"))


def formula_of(name: str) -> Formula | None:
    """The formula for an op's name, whose in-place form (`aten::add_`) counts like the other; null where there is none."""
    by_name, by_pattern = formulas()
    found = by_name.get(name) or by_name.get(name.removesuffix("_"))
    return found or next((formula for pattern, formula in by_pattern if pattern.search(name)), None)


@cache
def attention_forward() -> list[str]:
    """Names of the fused attention ops that run forward."""
    by_name, _ = formulas()
    return [
        name
        for name, formula in by_name.items()
        if _module(formula) is attention and not _keywords(formula).get("backward")
    ]


def _formula(entry: dict[str, Any]) -> Formula:
    module, _, function = str(entry["function"]).partition(".")
    keywords = {key: value for key, value in entry.items() if key not in ("function", "ops", "patterns")}
    return partial(getattr(_MODULES[module], function), **keywords)


def _keywords(formula: Formula) -> dict[str, Any]:
    return formula.keywords if isinstance(formula, partial) else {}


def _module(formula: Formula) -> ModuleType | None:
    inner = formula.func if isinstance(formula, partial) else formula
    return _MODULES.get(inner.__module__.rpartition(".")[2])


def _works(ops: pl.DataFrame) -> pl.DataFrame:
    """Ops that have a formula and shapes it can use: op, and the columns of _WORK_SCHEMA."""
    named = [name for name in ops["name"].unique().cast(pl.String) if name is not None and formula_of(name)]
    candidates = ops.filter(is_one_of(ops["name"], named), pl.col("shapes").is_not_null())
    signatures = candidates.select(_SIGNATURE).unique(maintain_order=True)
    return _with_work(candidates, signatures, _work_rows(signatures))


def _with_work(candidates: pl.DataFrame, signatures: pl.DataFrame, rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    """The candidates whose signature has work, with it."""
    computed = pl.DataFrame(rows, schema=_WORK_SCHEMA, orient="row")
    known = pl.concat([signatures, computed], how="horizontal").filter(pl.col("is_tensor_op").is_not_null())
    found = candidates.join(known, on=signatures.columns, how="inner", nulls_equal=True)
    return found.select("op", *_WORK_SCHEMA)


def _readable(ops: pl.DataFrame, launches: pl.DataFrame, works: pl.DataFrame) -> pl.DataFrame:
    """The same of ops without a formula that launched one matmul kernel themselves, and whose tensors can be one matmul only."""
    single = launches.filter("is_tensor").group_by("op").agg(pl.col("is_matmul").all(), count=pl.len())
    candidates = single.filter("is_matmul", pl.col("count") == 1).select("op").drop_nulls()
    known = _marked(works.filter("is_tensor_op")["op"], ops.height)
    inside = nearest(ops["parent"], known).is_not_null() | named(ops["name"], _NOT_ONE_OP)
    candidates = ops.filter(~inside, pl.col("shapes").is_not_null()).join(candidates, on="op", how="semi")
    signatures = candidates.select(_RECORDED).unique(maintain_order=True)
    calls = (parse(*text) for text in signatures.select(pl.all().cast(pl.String)).iter_rows())
    found = (matmul.only(call) if call and not formula_of(call.name) else None for call in calls)
    rows = [_row(work, is_tensor_op=True) if work else _NO_WORK for work in found]
    return _with_work(candidates, signatures, rows)


def _told_by_others(ops: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Ops with the inputs of their partner (see `Call`), and the mask that their attention kernels are compiled for.

    The partner of a convolution's gradient is the backward op around it, that of a function's forward its backward node, which
    has its sequence number, and the reverse.
    """
    holds = is_one_of(ops["name"], convolution.HOLDS_GRADIENTS)
    around = nearest(ops["parent"], holds).set(holds, None)
    partner = pl.Series(around).zip_with(around.is_not_null(), _other_pass(ops))
    masks = launches.filter(pl.col("mask").is_not_null()).group_by("op").agg(pl.col("mask").first())
    inputs = [at(ops[column], partner).alias(f"partner_{column}") for column in _RECORDED[1:]]
    return ops.with_columns(inputs).join(masks, on="op", how="left", maintain_order="left")


def _other_pass(ops: pl.DataFrame) -> pl.Series:
    """For a backward node `<function>Backward` in the table the forward op of its sequence number, and the reverse."""
    backward = [name for name in formulas()[0] if name.endswith("Backward")]
    text = pl.col("name").cast(pl.String)
    function, is_backward = text.str.strip_suffix("Backward"), text.str.ends_with("Backward")
    forward = [name.removesuffix("Backward") for name in backward]
    passes = ops.filter(is_one_of(ops["name"], [*backward, *forward]), pl.col("sequence") >= 0).select(
        "op", "sequence", function.alias("function"), is_backward.alias("is_backward")
    )
    first = passes.unique(["sequence", "function", "is_backward"], keep="first", maintain_order=True)
    others = first.with_columns(~pl.col("is_backward")).rename({"op": "partner"})
    found = passes.join(others, on=["sequence", "function", "is_backward"], how="inner").select("op", "partner")
    return ops.select("op").join(found, on="op", how="left", maintain_order="left")["partner"]


def _work_rows(signatures: pl.DataFrame) -> list[tuple[Any, ...]]:
    """A row of _WORK_SCHEMA per signature, all null where it has no work."""
    texts = list(signatures.select(pl.all().cast(pl.String)).iter_rows())
    calls = [parse(*text[:4]) for text in texts]
    partners = [parse("", *text[4:7]) for call, text in zip(calls, texts, strict=True) if call]
    complete = iter(convolution.complete((call for call in calls if call), partners))
    told = (
        next(complete)._replace(partner=parse("", *text[4:7]), mask=text[7]) if call else None
        for call, text in zip(calls, texts, strict=True)
    )
    return [(_work_row(call) if call else None) or _NO_WORK for call in told]


def _work_row(call: Call) -> tuple[Any, ...] | None:
    formula = formula_of(call.name)
    work = formula(call) if formula else None
    if formula is None or work is None or (work.flops or 0.0) > _MOST_FLOPS:
        return None
    return _row(work, is_tensor_op=_module(formula) is not memory_ops)


def _row(work: Work, *, is_tensor_op: bool) -> tuple[Any, ...]:
    return work.flops, work.most, work.moved.known_bytes, work.moved.untyped_elements, work.dtype, is_tensor_op


def _launches(trace: Trace) -> pl.DataFrame:
    """Activities with what decides their share: activity, op, duration_ns, is_tensor, is_other, and what the kernel's name tells:
    is_matmul, mask, width_bytes, multiplies_less.
    """
    activities = trace.activities
    is_compute = activities["kind"] == "compute"
    kind = at(trace.calls["kind"].cast(pl.String), activities["call"])
    is_tensor = activities["tensor"].fill_null(value=False)
    direct = is_compute & ~(kind == "graph_launch").fill_null(value=False)
    return activities.select(
        "activity",
        "op",
        "duration_ns",
        (is_tensor & direct).alias("is_tensor"),
        (~is_tensor & direct).alias("is_other"),
        _is_matmul(activities).alias("is_matmul"),
        _masks(activities["name"]).alias("mask"),
        _widths(activities).alias("width_bytes"),
        named(activities["name"], _FEWER_MULTIPLICATIONS).fill_null(value=False).alias("multiplies_less"),
    )


def _owners(launches: pl.DataFrame, ops: pl.DataFrame, works: pl.DataFrame) -> pl.DataFrame:
    """Launches with `owner`: the op whose work they do.

    A tensor kernel takes the nearest op with a formula for FLOPs, unless that op holds another such op whose kernels have the
    work already. Other kernels take the nearest op with any formula; where its work went to tensor kernels they get none,
    but `served` names it.
    """
    heavy = _marked(works.filter("is_tensor_op")["op"], ops.height)
    any_work = _marked(works["op"], ops.height)
    near_heavy, near_any = nearest(ops["parent"], heavy), nearest(ops["parent"], any_work)
    for_tensor = at(near_heavy, launches["op"]).set(~launches["is_tensor"], None)
    used = _marked(for_tensor.drop_nulls().unique(), ops.height)
    around = at(nearest(ops["parent"], used), ops["parent"].filter(used))
    composite = _marked(around.drop_nulls().unique(), ops.height)
    for_tensor = for_tensor.set(at(composite, for_tensor).fill_null(value=False), None)
    for_other = at(near_any, launches["op"]).set(~launches["is_other"], None)
    for_other = for_other.set(at(used, for_other).fill_null(value=False), None)
    transforming = at(near_heavy, launches["op"]).filter(launches["multiplies_less"]).drop_nulls()
    return launches.with_columns(
        pl.coalesce(for_tensor, for_other).alias("owner"),
        at(nearest(ops["parent"], used), launches["op"]).set(~launches["is_other"], None).alias("served"),
        multiplies_less=pl.col("multiplies_less") | for_tensor.is_in(transforming.implode()).fill_null(value=False),
    )


def _split(launches: pl.DataFrame) -> pl.DataFrame:
    """The owner's work by duration among its launches; evenly where all of them took no time."""
    total = pl.col("duration_ns").sum().over("owner")
    share = pl.when(total > 0).then(pl.col("duration_ns") / total).otherwise(1 / pl.len().over("owner"))
    untyped = (
        pl.when(pl.col("untyped_elements") > 0).then(pl.col("untyped_elements") * pl.col("width_bytes")).otherwise(0)
    )
    return launches.with_columns(
        pl.when("is_tensor").then(pl.col("flops", "flops_most") * share),
        ((pl.col("known_bytes") + untyped) * share).alias("bytes_moved"),
    )


def _serve(shares: pl.DataFrame, kernels: pl.Series, names: pl.Series, works: pl.DataFrame) -> pl.DataFrame:
    """Bytes of kernels that serve a tensor op (layout changes, casts): what the table says of the op's least traffic."""
    pairs = shares.select("served", "owner", kernel=kernels, op_name=at(names, shares["served"]))
    texts = pairs.filter(pl.col("served").is_not_null(), pl.col("owner").is_null()).select("kernel", "op_name").unique()
    rules = [
        pl.when(
            pl.col("kernel").cast(pl.String).str.contains("|".join(rule["kernels"])),
            pl.col("op_name").cast(pl.String).str.contains("|".join(rule["ops"])),
        ).then(rule["moved"])
        for rule in _tables()["served"]
    ]
    moved = texts.with_columns(pl.coalesce(*rules).alias("moved"))
    traffic = works.select("op", served_bytes="known_bytes")
    found = pairs.join(moved, on=["kernel", "op_name"], how="left", maintain_order="left").join(
        traffic, left_on="served", right_on="op", how="left", maintain_order="left"
    )
    served = found.select(pl.col("moved") * pl.col("served_bytes"))["moved"]
    return shares.with_columns(bytes_moved=pl.coalesce("bytes_moved", served))


def _is_matmul(activities: pl.DataFrame) -> pl.Series:
    return activities.select((pl.col("family").cast(pl.String) == "gemm").fill_null(value=False))["family"]


def _masks(names: pl.Series) -> pl.Series:
    """The mask that a flash-attention kernel's template arguments say it is compiled for: "full", "causal" or "local"."""
    distinct = names.unique().drop_nulls()
    text = pl.col("name").cast(pl.String)
    flags = [text.str.extract_groups(pattern).struct.rename_fields(["causal", "local"]) for pattern in _MASKED]
    causal, local = (pl.coalesce(found.struct.field(name) for found in flags) for name in ("causal", "local"))
    mask = pl.when(local == "true").then(pl.lit("local")).otherwise(causal.replace({"true": "causal", "false": "full"}))
    told = (
        distinct.filter(distinct.cast(pl.String).str.contains("flash", literal=True))
        .to_frame("name")
        .with_columns(mask=mask)
    )
    return names.to_frame("name").join(told, on="name", how="left", maintain_order="left")["mask"]


def _widths(activities: pl.DataFrame) -> pl.Series:
    """Bytes of an element as the kernel's name tells: PyTorch's opaque copies, then the classified dtype, then a C++ type."""
    names = activities.select("name", "dtype").unique()
    text = pl.col("name").cast(pl.String)
    opaque = text.str.extract(r"OpaqueType<(\d+)", 1).cast(pl.Float64, strict=False)
    classified = pl.col("dtype").replace_strict(_WIDTHS, default=None, return_dtype=pl.Float64)
    cpp = text.str.extract(r"[<, ](double|float|int|long|bool|c10::Half|c10::BFloat16|__half|__nv_bfloat16)[,>]", 1)
    typed = cpp.replace_strict(_CPP_WIDTHS, default=None, return_dtype=pl.Float64)
    known = names.with_columns(pl.coalesce(opaque, classified, typed).alias("width"))
    return activities.join(known, on=["name", "dtype"], how="left", nulls_equal=True, maintain_order="left")["width"]


_CPP_WIDTHS = {name: float(width) for name, (width, _) in DTYPES.items()} | {"__half": 2.0, "__nv_bfloat16": 2.0}


def _marked(rows: pl.Series, height: int) -> pl.Series:
    marked = pl.repeat(value=False, n=height, dtype=pl.Boolean, eager=True)
    return marked.scatter(rows, values=True) if len(rows) else marked
