"""The same data for people who work in pandas, and for HolisticTraceAnalysis (HTA): extras `pandas` and `hta`."""

from __future__ import annotations

from trace_doctor.interop.crosscheck import crosscheck_hta
from trace_doctor.interop.holistic import to_hta
from trace_doctor.interop.tables import to_pandas

__all__ = ["crosscheck_hta", "to_hta", "to_pandas"]
