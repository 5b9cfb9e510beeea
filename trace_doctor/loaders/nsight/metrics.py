"""Sampled GPU metrics (`--gpu-metrics-devices`): what the GPU's own counters say, every 100 us."""

from __future__ import annotations

import polars as pl

from trace_doctor.loaders.nsight import tables as export
from trace_doctor.loaders.nsight.tables import Tables
from trace_doctor.trace import METRICS


def read(tables: Tables, by_metrics_id: dict[int, int]) -> pl.DataFrame:
    """Samples with the columns of `trace.METRICS`. Their ids are those of one report; the low byte of a type is the GPU's."""
    samples = export.read(tables, export.METRICS, integers=["timestamp", "typeId", "metricId", "value"])
    names = export.read(tables, export.METRIC_NAMES, integers=["typeId", "metricId"], texts=["metricName"])
    ids = pl.Series(list(by_metrics_id), dtype=pl.Int64)
    numbers = pl.Series(list(by_metrics_id.values()), dtype=METRICS["device"].dtype)
    return (
        samples.join(names.unique(["typeId", "metricId"], keep="first"), on=["typeId", "metricId"])
        .select(
            (pl.col("typeId") & 0xFF)
            .replace_strict(ids, numbers, default=None, return_dtype=pl.UInt16)
            .alias("device"),
            pl.col("metricName").cast(pl.Categorical).alias("name"),
            pl.col("timestamp").alias("at_ns"),
            pl.col("value").cast(pl.Float64),
        )
        .drop_nulls()
        .sort("device", "at_ns")
    )
