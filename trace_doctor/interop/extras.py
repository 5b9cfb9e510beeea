"""Libraries that come with an extra and are imported where they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trace_doctor.errors import UsageError


def require(module: str, *, extra: str) -> Any:
    """The module of an optional library; UsageError with the pip command where it, or what it needs, is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        msg = f"this needs {error.name}, which is not installed"
        raise UsageError(msg, where=f"import {module}", hint=f"pip install 'trace-doctor[{extra}]'") from None
