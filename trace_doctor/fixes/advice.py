"""What to do about a finding, in the words of advice.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

import msgspec

from trace_doctor.fixes.frameworks import PLAIN

Language = Literal["python", "shell", "json"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The advice of a rule, or of one of its variants; what a variant leaves out is the rule's."""

    code: str
    variant: str = ""
    title: str = ""
    fix: str = ""
    risk: str = ""
    verify: str = ""
    snippet: dict[str, dict[Language, str]] = {}
    """One by framework, under its language; "PyTorch" for frameworks without one of their own."""


class Told(NamedTuple):
    """Advice with its blanks filled."""

    title: str
    fix: str
    risk: str | None
    verify: str | None
    snippet: str | None = None
    language: Language | None = None
    framework: str | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[Entry, ...]


@cache
def entries() -> dict[tuple[str, str], Entry]:
    """All advice by code and variant."""
    text = resources.files("trace_doctor.fixes").joinpath("advice.toml").read_bytes()
    return {(entry.code, entry.variant): entry for entry in msgspec.toml.decode(text, type=_File).rule}


def advise(code: str, variant: str, frameworks: Sequence[str], words: Mapping[str, str]) -> Told:
    """The advice of a rule's variant, its blanks filled with `words`, and the snippet of the first framework that has one."""
    base = entries()[code, ""]
    entry = entries().get((code, variant), base)
    snippets = entry.snippet or base.snippet
    told = Told(
        title=(entry.title or base.title).format_map(words),
        fix=(entry.fix or base.fix).format_map(words),
        risk=(entry.risk or base.risk).format_map(words) or None,
        verify=(entry.verify or base.verify).format_map(words) or None,
    )
    shown = next((name for name in (*frameworks, PLAIN) if name in snippets), None)
    if shown is None:
        return told
    ((language, snippet),) = snippets[shown].items()
    return told._replace(snippet=snippet, language=language, framework=shown)
