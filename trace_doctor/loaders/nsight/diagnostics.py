"""What Nsight says of its own recording, as far as it bears on the numbers."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from trace_doctor.loaders.nsight import tables as export
from trace_doctor.loaders.nsight.tables import Tables
from trace_doctor.trace import Warning

# beginnings of texts, so that nothing of the program's own output is ever repeated. source: 91 public exports with this table
_SAID = {
    "CUDA hardware tracing is not supported": "CUDA was traced by software instrumentation: launches cost more than without",
    "Not all CUDA events might have been collected": "not all CUDA events were collected",
    "Not all NVTX events might have been collected": "not all NVTX events were collected",
    "CUDA profiling might have not been started correctly": "CUDA profiling may not have started correctly in some process",
    "No CUDA events collected": "some process recorded no CUDA events",
    "CUDA device buffers flush": "CUDA buffers were flushed while the program ran",
}
_WORTH = 2
"""Warnings and errors."""


def read(tables: Tables) -> Iterator[Warning]:
    """A warning for each known text."""
    rows = export.read(tables, export.DIAGNOSTICS, integers=["severity"], texts=["text"])
    said = rows.filter(pl.col("severity") >= _WORTH)["text"].drop_nulls()
    for beginning, meaning in _SAID.items():
        count = int(said.str.starts_with(beginning).sum())
        if count:
            yield Warning("nsight-diagnostics", f"{meaning} ({count} x)")
