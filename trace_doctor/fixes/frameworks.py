"""Which framework a trace shows, so that a fix names the flags its users have."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

import polars as pl

from trace_doctor.trace import Trace

PLAIN = "PyTorch"


def framework_of(trace: Trace) -> str:
    """The framework that the names of ops and annotations show; plain PyTorch where none does."""
    names = pl.concat([trace.ops["name"].unique(), trace.annotations["name"].unique()]).drop_nulls().cast(pl.String)
    return next((name for name, pattern in _frameworks() if names.str.contains(pattern).any()), PLAIN)


@cache
def _frameworks() -> tuple[tuple[str, str], ...]:
    text = resources.files("trace_doctor.fixes").joinpath("frameworks.toml").read_text(encoding="utf-8")
    return tuple((entry["name"], "|".join(entry["patterns"])) for entry in tomllib.loads(text)["framework"])
