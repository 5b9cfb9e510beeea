"""The comparison for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from trace_doctor.comparison import Comparison
from trace_doctor.reporter.comparison_view import Table, view
from trace_doctor.reporter.terminal import WIDTH, draw, wrapped

NARROWEST_NAME = 12
BETWEEN = 2


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
        yield from _table(one, width)
    if shown.notes:
        yield Text()
    for note in shown.notes:
        yield from wrapped(note, width, first="  - ", rest="    ")


def _table(one: Table, width: int) -> Iterator[Text]:
    yield Text()
    yield Text(one.title, "bold")
    rows = [one.header, *one.rows]
    widths = _widths(one, width - 2)
    for place, row in enumerate(rows):
        line = Text("  ")
        for column, (cell, cells) in enumerate(zip(row, widths, strict=True)):
            part = Text(cell, "dim" if place == 0 else "bold red" if cell == "FAIL" else "")
            part.truncate(cells, overflow="ellipsis")
            part.align("right" if column in one.right else "left", cells)
            line.append_text(part)
            line.append("" if column == len(widths) - 1 else " " * BETWEEN)
        yield line
    if one.more:
        yield Text(f"  {one.more}", "dim")


def _widths(one: Table, width: int) -> list[int]:
    """Columns as wide as their longest cell; names give way, then the widest of the rest, until the row fits."""
    rows = [one.header, *one.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(one.header))]
    while sum(widths) + BETWEEN * (len(widths) - 1) > width:
        wide = [column for column in one.names if widths[column] > NARROWEST_NAME]
        column = max(wide or range(len(widths)), key=lambda column: widths[column])
        if widths[column] <= 1:
            break
        widths[column] -= 1
    return widths
