"""How people count a training step's FLOPs, by name, from conventions.toml."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from trace_doctor.errors import UsageError

DEFAULT = "trace-doctor"
BY_PARAMETERS = "6n"
"""The convention of a model that is known by its parameters alone."""


class Convention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of conventions.toml, where the words are explained."""

    name: str
    aliases: tuple[str, ...] = ()
    formula: str
    weights: Literal["matmuls", "parameters"]
    tables: Literal["all", "no-positions", "no-input", "no-embedding"] = "all"
    attention: Literal["attended", "half-window", "half", "full", "none"]
    router: bool = False
    adapters: bool = False
    scores: float = 0.0
    attention_backward: float = 2.0
    full_recompute: Literal["layers", "everything"] = "layers"
    selective_recompute: float = 1.0
    note: str = ""
    source: str


class _Table(msgspec.Struct, frozen=True):
    convention: tuple[Convention, ...]


@cache
def catalogue() -> tuple[Convention, ...]:
    """All conventions, the default first."""
    text = resources.files("trace_doctor.work").joinpath("conventions.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Table).convention


def named(name: str) -> Convention:
    """The convention of that name; raises UsageError with near names where there is none."""
    known = {alias: row for row in catalogue() for alias in (row.name, *row.aliases)}
    wanted = name.strip().lower()
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted[:100], known, n=3, cutoff=0.5)
    msg = f"there is no convention {name!r}"
    listed = ", ".join(row.name for row in catalogue())
    raise UsageError(
        msg, where="--convention", hint=f"did you mean {' or '.join(near)}?" if near else f"choose one of {listed}"
    )
