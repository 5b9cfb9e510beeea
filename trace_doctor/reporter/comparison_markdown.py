"""The comparison as GitHub Markdown, below the size that GitHub takes."""

from __future__ import annotations

from trace_doctor.comparison import Comparison
from trace_doctor.reporter import text
from trace_doctor.reporter.comparison_view import ComparisonView, view
from trace_doctor.reporter.markdown import BELOW_BYTES, Block, drawn, escape, fitted
from trace_doctor.reporter.tables import Table

MARKER = "<!-- trace-doctor:compare -->"
"""First line: whoever updates a comment finds it by this."""


def render(comparison: Comparison, *, below_bytes: int = BELOW_BYTES) -> str:
    """The comparison as Markdown of fewer than `below_bytes` bytes; details are left out first, and named."""
    shown = view(comparison)
    blocks = [
        Block("", [MARKER, f"## {escape(shown.headline)}", "", f"**{escape(shown.subject)}**", ""]),
        Block("", [line for sentence in shown.sentences for line in (escape(sentence), "")]),
        *(Block(one.title, drawn(one), _rank(place, one)) for place, one in enumerate(shown.tables)),
        Block("the notes", _notes(shown), 1),
    ]
    return text.plain(fitted(blocks, below_bytes))


def _rank(place: int, one: Table) -> int:
    return 9 if one.is_detail else 1 + place


def _notes(shown: ComparisonView) -> list[str]:
    return [f"- {escape(note)}" for note in shown.notes]
