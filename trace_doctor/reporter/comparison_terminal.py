"""The comparison for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from trace_doctor.comparison import Comparison
from trace_doctor.reporter.comparison_view import view
from trace_doctor.reporter.terminal import WIDTH, draw, table, wrapped


def render(comparison: Comparison, *, width: int = WIDTH, colour: str | None = None, ascii_only: bool = False) -> str:
    """The comparison as text for a terminal of `width` columns; the arguments are those of `terminal.render`."""
    return draw(lambda cells: _lines(comparison, cells), width=width, colour=colour, ascii_only=ascii_only)


def _lines(comparison: Comparison, width: int) -> Iterator[Text]:
    shown = view(comparison)
    yield Text(shown.subject, "dim")
    yield Text()
    yield from wrapped(shown.headline, width, first="", rest="    ", style="bold")
    for sentence in shown.sentences:
        yield from wrapped(sentence, width, first="  ", rest="  ")
    for one in shown.tables:
        yield from table(one, width)
    if shown.notes:
        yield Text()
    for note in shown.notes:
        yield from wrapped(note, width, first="  - ", rest="    ")
