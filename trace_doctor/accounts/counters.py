"""What the GPU's own counters say of the window: sampled metrics, averaged over the window and over each step."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from trace_doctor.accounts.weights import weighted
from trace_doctor.classifiers.intervals import union
from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.classifiers.timeline import COMPUTE
from trace_doctor.hardware import counters
from trace_doctor.report import Counter, StepValue

ENOUGH_SAMPLES = 10
"""A mean of fewer says nothing: a profiler takes 10 000 a second."""


def counters_of(analysis: Analysis) -> list[Counter]:
    """The counters of one GPU as shares of what the hardware can sustain, in the order of counters.toml; none without samples.

    Samples are averages over the interval before them. A kernel shorter than that is in no sample alone.
    """
    samples = _inside(analysis)
    if samples.is_empty():
        return []
    bound = _while_memory_bound(analysis, samples)
    steps = _means(samples, "number").filter(pl.col("number").is_not_null())
    found = []
    for counter, recorded, count, value in _means(samples).iter_rows():
        of_steps = steps.filter(pl.col("counter") == counter).sort("number").select("number", "value")
        found.append(
            Counter(
                name=counter,
                recorded_as=sorted(recorded),
                samples=count,
                value=value if count >= ENOUGH_SAMPLES else None,
                while_memory_bound=bound.get(counter),
                steps=[StepValue(number=number, value=mean) for number, mean in of_steps.iter_rows()],
            )
        )
    order = [row.name for row in counters.catalogue()]
    return sorted(found, key=lambda one: order.index(one.name))


def share(found: Sequence[Counter], *names: str) -> float | None:
    """The sum of some counters; null where one of them is unknown."""
    values = [one.value for one in found if one.name in names]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(names) else None


def memory_share(found: Sequence[Counter]) -> float | None:
    """Share of the memory's bandwidth that was used while memory-bound kernels ran; null without such samples."""
    bound = [one.while_memory_bound for one in found if one.name in ("dram_read", "dram_write")]
    known = [value for value in bound if value is not None]
    return sum(known) if len(known) == 2 else None


def mean_counters(gpus: Sequence[Sequence[Counter]], weights: Sequence[int]) -> list[Counter]:
    """Means over GPUs weighted by their windows; counters that not all of them have are left out."""
    rows = [{one.name: one for one in gpu} for gpu in gpus]
    return [_mean([row[name] for row in rows], weights) for name in rows[0] if all(name in row for row in rows)]


def _mean(of_gpus: Sequence[Counter], weights: Sequence[int]) -> Counter:
    numbers = dict.fromkeys(step.number for one in of_gpus for step in one.steps)
    steps = {n: [step.value for one in of_gpus for step in one.steps if step.number == n] for n in numbers}
    return Counter(
        name=of_gpus[0].name,
        recorded_as=sorted({name for one in of_gpus for name in one.recorded_as}),
        samples=sum(one.samples for one in of_gpus),
        value=weighted([one.value for one in of_gpus], weights),
        while_memory_bound=weighted([one.while_memory_bound for one in of_gpus], weights),
        steps=[StepValue(number=n, value=sum(values) / len(values)) for n, values in steps.items()],
    )


def _inside(analysis: Analysis) -> pl.DataFrame:
    """The samples inside the window that are read: counter, name, at_ns, number (of the step), share."""
    own = analysis.trace.metrics.filter(pl.col("device") == analysis.number)
    names = [(name, counters.counter(name)) for name in own["name"].unique().cast(pl.String)]
    clock_hz = analysis.trace.meta.devices[analysis.number].clock_hz
    full = {"percent": 100.0, "hertz": float(clock_hz) if clock_hz else None}
    known = [(name, row.name, full[row.unit]) for name, row in names if row and full[row.unit]]
    table = pl.DataFrame(known, schema={"name": pl.String, "counter": pl.String, "full": pl.Float64}, orient="row")
    read = own.with_columns(pl.col("name").cast(pl.String)).join(table, on="name").sort("at_ns")
    placed = read.join_asof(analysis.spans.sort("start_ns"), left_on="at_ns", right_on="start_ns", suffix="_span")
    return placed.filter(pl.col("at_ns") < pl.col("end_ns")).select(
        "counter", "name", "at_ns", "number", share=pl.col("value") / pl.col("full")
    )


def _means(samples: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Counter (and `by`), recorded, samples, value: the mean of each name, summed over the names of a counter."""
    by_name = samples.group_by("counter", "name", *by).agg(samples=pl.len(), value=pl.col("share").mean())
    means = by_name.group_by("counter", *by).agg(
        pl.col("name").alias("recorded"), pl.col("samples").max(), pl.col("value").sum()
    )
    return means.select("counter", *by, "recorded", "samples", "value").sort("counter", *by)


def _while_memory_bound(analysis: Analysis, samples: pl.DataFrame) -> dict[str, float]:
    """Means over the samples whose whole interval lies in kernels that do no tensor work."""
    pieces = analysis.account.timeline.pieces
    kernels = union(pieces.filter((pl.col("class") == COMPUTE) & (pl.col("kind") == "compute"))).sort("start_ns")
    period = samples.sort("at_ns").with_columns(before_ns=pl.col("at_ns").diff().over("name"))
    inside = period.drop_nulls("before_ns").join_asof(kernels, left_on="at_ns", right_on="start_ns")
    held = inside.filter(
        (pl.col("at_ns") <= pl.col("end_ns")) & (pl.col("at_ns") - pl.col("before_ns") >= pl.col("start_ns"))
    )
    means = _means(held).filter(pl.col("samples") >= ENOUGH_SAMPLES)
    return dict(means.select("counter", "value").iter_rows())
