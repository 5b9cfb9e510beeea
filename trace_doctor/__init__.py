"""trace-doctor says where the FLOPs of a training run went: MFU, and every lost nanosecond by cause.

The public names are loaded on first use, so that the command line starts without Polars.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trace_doctor import errors
    from trace_doctor.comparing.assembly import compare
    from trace_doctor.loaders.source import load
    from trace_doctor.options import Options
    from trace_doctor.pipeline import analyze
    from trace_doctor.report import Report
    from trace_doctor.trace import Trace

__all__ = ["Options", "Report", "Trace", "analyze", "compare", "errors", "load"]

_HOMES = {
    "Options": "trace_doctor.options",
    "Report": "trace_doctor.report",
    "Trace": "trace_doctor.trace",
    "analyze": "trace_doctor.pipeline",
    "compare": "trace_doctor.comparing.assembly",
    "load": "trace_doctor.loaders.source",
}


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first asked for (PEP 562)."""
    if name == "errors":
        return import_module("trace_doctor.errors")
    if name == "__version__":
        return import_module("importlib.metadata").version("trace-doctor")
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
