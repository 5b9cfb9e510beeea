"""One GPU as the rules see it: what is lost and not yet claimed, and the kernels that hold it."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.classifiers.timeline import IDLE, by_activity
from trace_doctor.fixes.frameworks import frameworks_of
from trace_doctor.loaders.nesting import nest
from trace_doctor.options import Limits
from trace_doctor.trace import Trace, matches

OPTIMIZER_RANGE = r"(?i)^(## ?)?optimi[sz]er\.step|^optimi[sz]er[_ .-]?step\b|^(## ?)?\w*optimi[sz]er[\w. -]*step"
UNNAMED = r"^\(between recorded ranges\)$|^ProfilerStep#"
"""Host time of which no range says what it is."""
_OF_KERNELS = [
    "kind", "family", "tensor", "stream", "duration_ns", "bytes", "ran_in", "op_row", "call", "recompute", "operation", "group",
    "group_size", "message_bytes", "wire_bytes", "expected_bandwidth", "wire_basis", "in_optimizer",
]  # fmt: skip


class Case(NamedTuple):
    """What a rule may look at."""

    analysis: Analysis
    losses: pl.DataFrame
    """A row for each charge that is a loss: `row` (its number), `time_ns` (what no rule claimed yet, above 0), `number` (step),
    `wall`, `cause`, `basis`, `name`, `op`, `activity`, `start_ns`, `is_idle` (a gap's); and of that activity (of a gap: the one that
    ends it) kind, family, tensor, stream, duration_ns, bytes, ran_in (dtype), op_row (op whose work it does), call, recompute,
    in_optimizer, and the fields of a collective."""
    kernels: pl.DataFrame
    """The GPU's activities inside the window, one row each, in order of start, with all that is known of them."""
    steps: int
    """Steps used, at least 1."""
    frameworks: tuple[str, ...]
    """Whose snippets fit, the most specific first."""
    limits: Limits

    @property
    def window_ns(self) -> int:
        """Length of the GPU's window."""
        return self.analysis.account.window_ns

    @property
    def per(self) -> str:
        """What counts are given for, in words."""
        return "a step" if self._has_steps else "in the window"

    @property
    def where(self) -> str:
        """Where what should not happen again and again does, in words."""
        return "inside the steps" if self._has_steps else "in the window"

    @property
    def _has_steps(self) -> bool:
        return bool(self.analysis.window.spans["number"].is_not_null().any())

    def caused(self, *causes: str) -> pl.DataFrame:
        """The unclaimed losses of these causes of the ledger."""
        return self.losses.filter(pl.col("cause").is_in(pl.Series(causes, dtype=pl.Categorical).implode()))

    def share(self, claims: pl.DataFrame) -> float:
        """Share of the window that these losses hold."""
        return float(claims["time_ns"].sum()) / self.window_ns if self.window_ns else 0.0

    def is_worth_saying(self, claims: pl.DataFrame) -> bool:
        """Whether these losses are large enough for a finding."""
        return not claims.is_empty() and self.share(claims) >= self.limits.least_share

    def is_weighty(self, claims: pl.DataFrame) -> bool:
        """Whether these losses are large enough for a warning."""
        return not claims.is_empty() and self.share(claims) >= self.limits.weighty_share

    def without(self, claims: pl.DataFrame) -> Case:
        """The case after a finding has claimed these losses, in full or in part."""
        taken = claims.group_by("row").agg(taken_ns=pl.col("time_ns").sum())
        at = self.losses["row"].search_sorted(taken["row"])  # rows stay in order
        left = self.losses["time_ns"].clone().scatter(at, self.losses["time_ns"].gather(at) - taken["taken_ns"])
        return self._replace(losses=self.losses.with_columns(left).filter(left > 0.5))


def case_of(analysis: Analysis, limits: Limits) -> Case:
    """The case of one GPU, nothing claimed yet."""
    kernels = by_activity(analysis.account.timeline.pieces).sort("start_ns", "activity")
    kernels = kernels.with_columns(in_optimizer=_in_optimizer(analysis.trace, kernels))
    losses = (
        analysis.account.charges.with_row_index("row")
        .filter((pl.col("time_ns") > 0) & (pl.col("wall") != "mfu"))
        .with_columns(is_idle=pl.col("class") == IDLE)
        .drop("class")
        .join(kernels.select("activity", *_OF_KERNELS), on="activity", how="left", maintain_order="left")
    )
    losses = _named_by_what_follows(losses, kernels)
    return Case(analysis, losses, kernels, max(1, _steps(analysis)), frameworks_of(analysis.trace), limits)


def _named_by_what_follows(losses: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Host code that no range names gets the name of the op, or else of the kernel, whose launch it delays."""
    name, op = pl.col("name").cast(pl.String), pl.col("op_name").cast(pl.String)
    unnamed = losses.filter(pl.col("cause") == "host code").select("row", "activity", "name")
    unnamed = unnamed.filter(matches(unnamed["name"], UNNAMED)).drop("name")
    following = kernels.join(unnamed, on="activity", how="semi").select("activity", follows=pl.coalesce(op, name))
    before = unnamed.join(following, on="activity", how="left").select(
        "row", before=pl.format("before {}", pl.col("follows").fill_null("the end of the step")).cast(pl.Categorical)
    )
    found = losses.select("row").join(before, on="row", how="left", maintain_order="left")["before"]
    return losses.with_columns(name=pl.coalesce(found, "name"))


def _steps(analysis: Analysis) -> int:
    spans = analysis.window.spans.filter(pl.col("device") == analysis.number)
    return spans["number"].drop_nulls().n_unique()


def _in_optimizer(trace: Trace, kernels: pl.DataFrame) -> pl.Series:
    """Whether each kernel is the optimizer's: by its family, or launched inside the optimizer's step."""
    return (kernels["family"] == "optimizer").fill_null(value=False) | launched_inside(trace, kernels, OPTIMIZER_RANGE)


def launched_inside(trace: Trace, kernels: pl.DataFrame, pattern: str) -> pl.Series:
    """Whether each kernel was launched inside a host range (op or annotation) whose name matches the regular expression."""
    columns = ["thread", "start_ns", "duration_ns", "name"]
    both = pl.concat([trace.ops.select(columns), trace.annotations.filter(pl.col("kind") == "user").select(columns)])
    names = both["name"].unique().drop_nulls()
    matching = names.filter(names.cast(pl.String).str.contains(pattern))
    ranges = both.join(matching.to_frame("name"), on="name", how="semi")
    if ranges.is_empty():
        return pl.repeat(value=False, n=len(kernels), dtype=pl.Boolean, eager=True)
    launching = kernels["call"].unique().drop_nulls()
    calls = trace.calls[launching]
    _, around = nest(ranges, calls)
    inside = launching.filter(around.is_not_null())
    return kernels["call"].is_in(inside.implode()).fill_null(value=False)
