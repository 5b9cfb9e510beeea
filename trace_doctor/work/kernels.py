"""What each kernel is: its family, whether it does tensor work, and the type of its operands, from its name and its op.

All knowledge stands in kernels.toml; here it is only applied, to the few hundred unique names of a trace.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec
import polars as pl

from trace_doctor.errors import UsageError
from trace_doctor.trace import ACTIVITY_KINDS, Trace

FAMILIES = (
    "communication", "gemm", "grouped_gemm", "convolution", "attention", "normalisation", "softmax", "elementwise",
    "reduction", "optimizer", "loss", "embedding", "layout", "random", "sort", "unknown",
)  # fmt: skip
TENSOR_FAMILIES = ("gemm", "grouped_gemm", "convolution", "attention")
FAMILY = pl.Enum(FAMILIES)
EXAMINED_CHARS = 2000
"""Template arguments may fill pages; what a kernel is stands at the beginning."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kernels of one family: regexes for the bare symbol and for the whole name."""

    family: str
    symbol: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    example: str = ""
    source: str = ""


class OpRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Family of kernels without a rule that such ops launch."""

    family: str
    op: tuple[str, ...]
    example: str = ""
    source: str = ""


class DtypeRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensor kernels whose operands have this type."""

    dtype: str
    name: tuple[str, ...]
    example: str = ""
    source: str = ""


class Patterns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of patterns, each list from the first to try to the last."""

    rule: tuple[Rule, ...] = ()
    op: tuple[OpRule, ...] = ()
    dtype: tuple[DtypeRule, ...] = ()

    def __add__(self, later: Patterns) -> Patterns:
        """These patterns before later ones."""
        return Patterns(self.rule + later.rule, self.op + later.op, self.dtype + later.dtype)


def classify(trace: Trace, patterns: str | None = None) -> Trace:
    """Adds `family` (Enum of FAMILIES), `tensor` (Boolean) and `dtype` (String, null: the name does not tell) to activities.

    Kernels only: copies, sets and opaque graphs have no family. Communication kernels get the kind "communication".
    `patterns` names a TOML file whose rules come before the built-in ones; UsageError where it cannot be used.
    """
    known = (read(patterns) if patterns else Patterns()) + _built_in()
    activities = trace.activities.with_columns(op_name=trace.ops["name"].gather(trace.activities["op"]))
    pairs = activities.select("kind", "name", "op_name").filter(pl.col("kind") == "compute").drop("kind").unique()
    classes = pairs.join(by_name(pairs["name"], known), on="name").join(
        by_op(pairs["op_name"], known), on="op_name", how="left", nulls_equal=True
    )
    kernels = classes.select(
        "name", "op_name", "dtype", family=pl.coalesce("family", "op_family", pl.lit("unknown", FAMILY))
    )
    return replace(trace, activities=_marked(activities, kernels).drop("op_name"))


def read(path: str) -> Patterns:
    """The patterns of a user's TOML file; UsageError where it cannot be read, or holds an unknown word or a bad regex."""
    try:
        patterns = msgspec.toml.decode(Path(path).read_bytes(), type=Patterns)
    except (OSError, ValueError, RecursionError) as problem:
        msg = f"the kernel patterns cannot be read: {problem}"
        raise UsageError(msg, where=path, hint="docs/reference/kernel-kinds.md shows the form of the file") from problem
    _check(patterns, path)
    return patterns


def by_name(names: pl.Series, patterns: Patterns) -> pl.DataFrame:
    """`family` and `dtype` of each unique kernel name; null where no rule matches, `dtype` also off tensor families."""
    unique = names.unique().drop_nulls()
    texts = unique.cast(pl.String).str.slice(0, EXAMINED_CHARS)
    frame = pl.DataFrame(
        {"name": unique, "text": texts, "symbol": pl.Series([symbol(text) for text in texts], dtype=pl.String)}
    )
    families = [
        pl.when(_any_of("symbol", rule.symbol) | _any_of("text", rule.name)).then(pl.lit(rule.family, FAMILY))
        for rule in patterns.rule
    ]
    dtypes = [pl.when(_any_of("text", rule.name)).then(pl.lit(rule.dtype)) for rule in patterns.dtype]
    family = pl.coalesce(*families, pl.lit(None, FAMILY))
    frame = frame.with_columns(family=family)
    return frame.select(
        "name",
        "family",
        dtype=pl.when(pl.col("family").is_in(TENSOR_FAMILIES)).then(pl.coalesce(*dtypes, pl.lit(None, pl.String))),
    )


def by_op(names: pl.Series, patterns: Patterns) -> pl.DataFrame:
    """`op_family`: the family that each unique op gives to kernels without a rule."""
    frame = pl.DataFrame({"op_name": names.unique()})
    text = frame.select(text=pl.col("op_name").cast(pl.String).str.slice(0, EXAMINED_CHARS))["text"]
    families = [pl.when(_any_of("text", rule.op)).then(pl.lit(rule.family, FAMILY)) for rule in patterns.op]
    found = text.to_frame().select(op_family=pl.coalesce(*families, pl.lit(None, FAMILY)))
    return pl.concat([frame, found], how="horizontal")


def symbol(name: str) -> str:
    """A kernel's qualified name alone: no return type, template arguments, parameters or anonymous namespaces.

    Kineto calls these `(anonymous namespace)`, Nsight Systems `<unnamed>`.
    Mangled names are read as far as their first template argument; the list of specialised arguments that Triton before
    2.2 wrote behind a name (`_0d1d2de`) goes too.
    """
    if name.startswith("_Z"):
        return _demangled(name)
    bare = re.sub(r"(\(anonymous namespace\)|<unnamed>)::", "", name).removeprefix("void ")
    if bare.startswith("std::enable_if<"):
        bare = bare.partition("::type ")[2] or bare
    return re.sub(r"_0[dc]?e?1[\dcde]*$", "", re.split(r"[<(\s\[]", bare, maxsplit=1)[0].removesuffix(".kd"))


def _demangled(name: str) -> str:
    """`_ZN2ck6device4gemmI...` is ck::device::gemm: lengths and identifiers up to the first template argument."""
    rest, parts = name.removeprefix("_Z").removeprefix("N"), []
    while found := re.match(r"(?:L|St)?(\d{1,4})", rest):
        end = found.end() + int(found[1])
        if end > len(rest):
            break
        parts.append(rest[found.end() : end])
        rest = rest[end:]
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N_")) or name


@cache
def _built_in() -> Patterns:
    text = resources.files("trace_doctor.work").joinpath("kernels.toml").read_bytes()
    return msgspec.toml.decode(text, type=Patterns)


def _any_of(column: str, patterns: Sequence[str]) -> pl.Expr:
    """Whether any of the regexes is found in the text; Rust's regexes take linear time, whatever the text."""
    if not patterns:
        return pl.lit(value=False)
    return pl.col(column).str.contains(_joined(patterns))


def _joined(patterns: Sequence[str]) -> str:
    """One regex for all; case does not matter."""
    return "(?i)" + "|".join(f"(?:{pattern})" for pattern in patterns)


def _check(patterns: Patterns, path: str) -> None:
    for family in (*(rule.family for rule in patterns.rule), *(op.family for op in patterns.op)):
        if family not in FAMILIES:
            msg = f"{family!r} is no family of kernels"
            raise UsageError(msg, where=path, hint=f"choose one of {', '.join(FAMILIES)}")
    types = {rule.dtype for rule in _built_in().dtype}
    for rule in patterns.dtype:
        if rule.dtype not in types:
            msg = f"{rule.dtype!r} is no type of operands"
            raise UsageError(msg, where=path, hint=f"choose one of {', '.join(sorted(types))}")
    lists = [*(rule.symbol for rule in patterns.rule), *(rule.name for rule in patterns.rule)]
    lists += [*(rule.op for rule in patterns.op), *(rule.name for rule in patterns.dtype)]
    for expressions in lists:
        for tried in (*((expression,) for expression in expressions), expressions):
            _compile(tried, path)


def _compile(expressions: tuple[str, ...], path: str) -> None:
    """Tries the regexes as they will be used: joined, which one alone may bear and many may be too large for."""
    try:
        pl.Series([""]).str.contains(_joined(expressions))
    except pl.exceptions.PolarsError as problem:
        msg = f"{' | '.join(expressions)[:200]!r} is no regular expression: {problem}"
        raise UsageError(msg, where=path, hint="Rust's syntax, without look-around and back-references") from problem


def _marked(activities: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Activities with the classes of their (name, op) pair."""
    compute = pl.col("kind") == "compute"
    joined = activities.join(kernels, on=["name", "op_name"], how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(
        family=pl.when(compute).then("family"),
        dtype=pl.when(compute).then("dtype"),
        tensor=(compute & pl.col("family").is_in(TENSOR_FAMILIES)).fill_null(value=False),
        kind=pl.when(compute & (pl.col("family") == "communication"))
        .then(pl.lit("communication", ACTIVITY_KINDS))
        .otherwise("kind"),
    )
