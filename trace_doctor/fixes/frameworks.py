"""Which frameworks a trace shows, so that a fix names the flags its users have."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

import polars as pl

from trace_doctor.trace import Trace

PLAIN = "PyTorch"


def frameworks_of(trace: Trace) -> tuple[str, ...]:
    """The frameworks that the names of ops and annotations show, the most specific first; none for plain PyTorch."""
    names = pl.concat([trace.ops["name"].unique(), trace.annotations["name"].unique()]).drop_nulls().cast(pl.String)
    return tuple(name for name, pattern in _frameworks() if names.str.contains(pattern).any())


@cache
def _frameworks() -> tuple[tuple[str, str], ...]:
    text = resources.files("trace_doctor.fixes").joinpath("frameworks.toml").read_text(encoding="utf-8")
    return tuple((entry["name"], "|".join(entry["patterns"])) for entry in tomllib.loads(text)["framework"])
