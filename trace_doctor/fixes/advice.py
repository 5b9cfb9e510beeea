"""What to do about a finding, in the words of advice.toml."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

import msgspec

from trace_doctor.fixes.frameworks import PLAIN


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The advice of a rule, or of one of its variants; what a variant leaves out is the rule's."""

    code: str
    variant: str = ""
    title: str = ""
    fix: str = ""
    risk: str = ""
    verify: str = ""
    snippet: dict[str, str] = {}
    """By framework; "PyTorch" for those without one of their own."""


class Told(NamedTuple):
    """Advice with its blanks filled."""

    title: str
    fix: str
    risk: str | None
    verify: str | None
    snippet: str | None
    framework: str | None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[Entry, ...]


@cache
def entries() -> dict[tuple[str, str], Entry]:
    """All advice by code and variant."""
    text = resources.files("trace_doctor.fixes").joinpath("advice.toml").read_bytes()
    return {(entry.code, entry.variant): entry for entry in msgspec.toml.decode(text, type=_File).rule}


def advise(code: str, variant: str, framework: str, words: Mapping[str, str]) -> Told:
    """The advice of a rule's variant for a framework, its blanks filled with `words`."""
    base = entries()[code, ""]
    entry = entries().get((code, variant), base)
    snippets = entry.snippet or base.snippet
    shown = framework if framework in snippets else PLAIN
    return Told(
        title=(entry.title or base.title).format_map(words),
        fix=(entry.fix or base.fix).format_map(words),
        risk=(entry.risk or base.risk).format_map(words) or None,
        verify=(entry.verify or base.verify).format_map(words) or None,
        snippet=snippets.get(shown),
        framework=shown if shown in snippets else None,
    )
