"""What the GPU's own counters are called and mean, from counters.toml."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Literal

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A counter of counters.toml."""

    name: str
    pattern: str
    unit: Literal["percent", "hertz"]
    meaning: str
    seen: bool


class _Table(msgspec.Struct, frozen=True):
    counter: tuple[Row, ...]


@cache
def catalogue() -> tuple[Row, ...]:
    """All counters that are read."""
    text = resources.files("trace_doctor.hardware").joinpath("counters.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Table).counter


@cache
def counter(recorded: str) -> Row | None:
    """The counter that a recorded name stands for; null for those that are not read."""
    return next((row for row in catalogue() if re.search(row.pattern, recorded)), None)
