"""Steps from the kernels alone: a sequence of names that repeats, where nothing on the host marks the steps.

A model's layers repeat too, in one forward pass. What tells a training step from a layer is the optimizer: it runs once a
step. So the period counts as a step only where each block holds the optimizer's kernels, and inference has no steps here.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

MIN_REPEATS = 3
MIN_KERNELS = 20
MIN_COVERED_SHARE = 0.8
MIN_ALIKE_SHARE = 0.98
OPTIMIZER = r"(?i)multi_tensor_apply|adam|adagrad|rmsprop|lamb_|lion_|sgd|muon|fused_optim"
"""Names of optimizer kernels, where work.kernels has not said the family."""
_EMPTY = pl.DataFrame(schema={"process": pl.UInt16, "number": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64})


class Period(NamedTuple):
    """A block of kernels that repeats; `frame` (process, number, start_ns, end_ns) has the host times of each repeat."""

    frame: pl.DataFrame = _EMPTY
    kernels: int = 0
    repeats: int = 0
    confidence: float = 0.0
    """Share of the kernels that are the same as one period before."""


def find(launched: pl.DataFrame) -> Period:
    """The period of each process's first device with one; of several processes the rule's numbers are the first's."""
    sequences = launched.filter(pl.col("kind") == "compute").sort("process", "device", "launched_ns", "start_ns")
    periods = [_period(part) for _, part in sequences.group_by("process", "device", maintain_order=True)]
    found = [period for period in periods if period.repeats]
    if not found:
        return Period()
    frame = pl.concat([period.frame for period in found]).unique(
        ["process", "number"], keep="first", maintain_order=True
    )
    return found[0]._replace(frame=frame)


def _period(kernels: pl.DataFrame) -> Period:
    name = kernels["name"].to_physical()
    optimizes = _is_optimizer(kernels)
    size = _spacing(name, optimizes)
    if size < MIN_KERNELS or MIN_REPEATS * size > len(name):
        return Period()
    alike = (name == name.shift(size)).slice(size).mean()
    first = _after_optimizer(optimizes, size)
    repeats = (len(name) - first) // size
    covered = repeats * size / len(name)
    if not isinstance(alike, float) or alike < MIN_ALIKE_SHARE or repeats < MIN_REPEATS or covered < MIN_COVERED_SHARE:
        return Period()
    begins = kernels.gather_every(size, first).head(repeats)["launched_ns"]
    last = kernels["launched_ns"].slice(first, repeats * size).max()
    frame = pl.DataFrame(
        {
            "process": kernels["process"].head(1).extend_constant(kernels["process"][0], repeats - 1),
            "number": pl.int_range(1, repeats + 1, dtype=pl.Int64, eager=True),
            "start_ns": begins,
            "end_ns": begins.shift(-1).fill_null(last)
            + (pl.int_range(repeats, eager=True) == repeats - 1).cast(pl.Int64),
        }
    )
    return Period(frame=frame, kernels=size, repeats=repeats, confidence=alike)


def _is_optimizer(kernels: pl.DataFrame) -> pl.Series:
    if "family" in kernels.columns:
        return (kernels["family"].cast(pl.String) == "optimizer").fill_null(value=False)
    return kernels["name"].cast(pl.String).str.contains(OPTIMIZER)


def _spacing(name: pl.Series, optimizes: pl.Series) -> int:
    """The largest distance at which the optimizer's kernels come back evenly: the period if there is one, else 0."""
    rows = pl.DataFrame({"name": name, "row": pl.int_range(len(name), eager=True)}).filter(optimizes)
    even = (
        rows.group_by("name")
        .agg(count=pl.len(), low=pl.col("row").diff().min(), high=pl.col("row").diff().max())
        .filter((pl.col("count") >= MIN_REPEATS) & (pl.col("low") == pl.col("high")))
    )
    # kernels that come many times a step are not even, unless the step is an optimizer and nothing else
    spacing = even["low"].max()
    return spacing if isinstance(spacing, int) else _turn_spacing(optimizes)


def _turn_spacing(optimizes: pl.Series) -> int:
    """The same from the ends of the optimizer's runs, for one that launches the same kernels several times."""
    ends = (optimizes & ~optimizes.shift(-1).fill_null(value=False)).arg_true()
    gaps = ends.cast(pl.Int64).diff().drop_nulls()
    size = gaps.max() if len(gaps) + 1 >= MIN_REPEATS else 0
    return size if isinstance(size, int) and gaps.min() == size else 0


def _after_optimizer(optimizes: pl.Series, size: int) -> int:
    """Where a step begins: after the last optimizer kernel before the longest stretch without any; modulo the period."""
    rows = optimizes.arg_true().cast(pl.Int64)
    ends = rows.filter((rows.shift(-1) - rows).fill_null(0) == (rows.diff().max() or 0))
    return (int(ends[0]) + 1) % size if len(ends) else 0
