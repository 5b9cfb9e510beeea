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
COMPILED = r"^triton_|^Torch-Compiled Region|^CompiledFunction"
UNNAMED = r"^\(between recorded ranges\)$|^ProfilerStep#"
"""Host time of which no range says what it is."""


class Case(NamedTuple):
    """What a rule may look at."""

    analysis: Analysis
    charges: pl.DataFrame
    """A row for each charge of the ledger: `row` (its number), `time_ns` (of a loss what no rule claimed yet, else 0), `number` (step),
    `wall`, `cause`, `basis`, `name`, `op`, `activity` (of a gap: the one that ends it), `start_ns`, `is_idle` (a gap's)."""
    kernels: pl.DataFrame
    """The GPU's activities inside the window, one row each, in order of start, with all that is known of them, and `in_optimizer`."""
    places: pl.Series
    """Of each activity of the trace its row in `kernels`, null where it has none."""
    steps: int
    """Steps used, at least 1."""
    is_compiled: bool
    """Whether torch.compile made some of the kernels or ranges."""
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

    def lost(self, *conditions: pl.Expr | pl.Series) -> pl.DataFrame:
        """The unclaimed losses for which all conditions hold: rows of `charges`."""
        return self.charges.filter(pl.col("time_ns") > 0, *conditions)

    def caused(self, *causes: str) -> pl.DataFrame:
        """The unclaimed losses of these causes of the ledger."""
        return self.lost(pl.col("cause").is_in(pl.Series(causes, dtype=pl.Categorical).implode()))

    def lost_by(self, *conditions: pl.Expr) -> pl.DataFrame:
        """The unclaimed losses of the kernels for which all conditions hold, and of the gaps that these end."""
        is_such = self.kernels.select(pl.all_horizontal(*conditions)).to_series()
        return self.lost(is_such.gather(self._rows(self.charges)))

    def with_kernels(self, losses: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """The losses with these columns of their kernels."""
        return losses.hstack(self.kernels.select(pl.col(columns).gather(self._rows(losses))))

    def _rows(self, losses: pl.DataFrame) -> pl.Series:
        """The row in `kernels` of each loss."""
        return self.places.gather(losses["activity"])

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
        taken = claims.group_by("row").agg(pl.col("time_ns").sum())
        held = self.charges["time_ns"]
        left = held.clone().scatter(taken["row"], held.gather(taken["row"]) - taken["time_ns"])
        return self._replace(charges=self.charges.with_columns(left.set(left <= 0.5, 0.0)))


def case_of(analysis: Analysis, limits: Limits) -> Case:
    """The case of one GPU, nothing claimed yet."""
    kernels = by_activity(analysis.account.timeline.pieces)
    kernels = kernels if kernels["activity"].is_sorted() else kernels.sort("activity")
    kernels = kernels.with_columns(in_optimizer=_in_optimizer(analysis.trace, kernels))
    nowhere = pl.repeat(None, len(analysis.trace.activities), dtype=pl.UInt32, eager=True)
    places = nowhere.scatter(kernels["activity"], pl.int_range(len(kernels), dtype=pl.UInt32, eager=True))
    is_loss = (pl.col("time_ns") > 0) & (pl.col("wall") != "mfu")
    charges = (
        analysis.account.charges.with_row_index("row")
        .with_columns(time_ns=pl.when(is_loss).then("time_ns").otherwise(0.0), is_idle=pl.col("class") == IDLE)
        .drop("class")
    )
    charges = _named_by_what_follows(charges, kernels)
    return Case(
        analysis,
        charges,
        kernels,
        places,
        max(1, _steps(analysis)),
        _is_compiled(analysis.trace, kernels),
        frameworks_of(analysis.trace),
        limits,
    )


def _named_by_what_follows(charges: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Host code that no range names gets the name of the op, or else of the kernel, whose launch it delays."""
    name, op = pl.col("name").cast(pl.String), pl.col("op_name").cast(pl.String)
    code = charges.select("row", "activity", "name", "cause").filter(pl.col("cause") == "host code")
    unnamed = code.filter(matches(code["name"], UNNAMED)).select("row", "activity")
    if unnamed.is_empty():
        return charges
    delayed = kernels.select("activity", "name", "op_name").join(unnamed, on="activity", how="semi")
    following = delayed.select("activity", follows=pl.coalesce(op, name))
    before = unnamed.join(following, on="activity", how="left").select(
        "row", before=pl.format("before {}", pl.col("follows").fill_null("the end of the step")).cast(pl.Categorical)
    )
    found = charges.select("row").join(before, on="row", how="left", maintain_order="left")["before"]
    return charges.with_columns(name=pl.coalesce(found, "name"))


def _steps(analysis: Analysis) -> int:
    spans = analysis.window.spans.filter(pl.col("device") == analysis.number)
    return spans["number"].drop_nulls().n_unique()


def _is_compiled(trace: Trace, kernels: pl.DataFrame) -> bool:
    names = pl.concat([kernels["name"].unique(), trace.ops["name"].unique()]).drop_nulls()
    return bool(names.cast(pl.String).str.contains(COMPILED).any())


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
    calls = trace.calls.select("thread", "start_ns", "duration_ns")[launching]
    _, around = nest(ranges, calls)
    inside = launching.filter(around.is_not_null())
    return kernels["call"].is_in(inside.implode()).fill_null(value=False)
