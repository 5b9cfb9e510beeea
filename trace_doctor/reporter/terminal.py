"""The report for a terminal: fits 80 columns, needs no colour, and falls back to ASCII."""

from __future__ import annotations

import io
import textwrap
import unicodedata
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.text import Text

from trace_doctor.report import Report
from trace_doctor.reporter import text
from trace_doctor.reporter.cards import Card
from trace_doctor.reporter.numbers import Number
from trace_doctor.reporter.tables import Table
from trace_doctor.reporter.view import Bar, Cause, View, view

WIDTH = 80
WIDEST = 100
NARROWEST = 60
LABEL = 20
POINTS = 8
TIME = 11
CARD = 18
NARROWEST_NAME = 12
BETWEEN = 2
"""Columns of a table."""
LABEL_OF_NUMBER = 22
VALUE = 14
OP_SHARE = 0.6
_ASCII = str.maketrans(
    {
        "█": "#",
        "■": "*",
        "▌": "#",
        "▐": "#",
        "▏": "|",
        "·": ".",
        "─": "-",
        "×": "x",
        "µ": "u",
        "…": "~",
        "–": "-",
        "≥": ">",
        "→": ">",
    }
)


def render(report: Report, *, width: int = WIDTH, colour: str | None = None, ascii_only: bool = False) -> str:
    """The report as text for a terminal of `width` columns.

    `colour` is one of rich's colour systems ("standard", "256", "truecolor"), null for none. With `ascii_only` every
    character is ASCII and as wide as the one it stands for.
    """
    return draw(lambda cells: _lines(view(report), cells), width=width, colour=colour, ascii_only=ascii_only)


def draw(
    lines: Callable[[int], Iterator[Text]], *, width: int, colour: str | None = None, ascii_only: bool = False
) -> str:
    """Lines, made for a width that fits, as text for a terminal."""
    width = min(max(width, NARROWEST), WIDEST)
    out = io.StringIO()
    console = Console(
        file=out, width=width, color_system=colour, force_terminal=colour is not None, no_color=False,  # type: ignore[arg-type]
        markup=False, highlight=False, emoji=False, legacy_windows=False, _environ={},
    )  # fmt: skip
    for line in lines(width):
        line.truncate(width, overflow="ellipsis")
        line.rstrip()
        console.print(line, soft_wrap=True)
    printed = text.plain(out.getvalue())
    return _as_ascii(printed) if ascii_only else printed


def _as_ascii(printed: str) -> str:
    def stand_in(char: str) -> str:
        return char if char.isascii() else "??" if unicodedata.east_asian_width(char) in "WF" else "?"

    return "".join(map(stand_in, printed.translate(_ASCII)))


def _lines(shown: View, width: int) -> Iterator[Text]:
    yield Text(shown.subject, "dim")
    yield Text()
    yield from _verdict(shown, width)
    yield from _heading(shown.waterfall, shown, width)
    yield from (_bar_line(bar, shown, width) for bar in shown.bars)
    yield from _findings(shown, width)
    yield from _heading("Numbers", shown, width, columns=False)
    for number in shown.numbers:
        yield from _number(number, width)
    yield from _paragraphs(shown.steps, width)
    yield from _gpus(shown, width)
    if shown.kernels.rows:
        yield from table(shown.kernels, width)
    if shown.causes:
        yield from _heading("Ledger: the largest causes", shown, width)
        for place, cause in enumerate(shown.causes, 1):
            yield from _cause(place, cause, shown, width)
        yield from _paragraphs((shown.more_causes,), width, indent=4)
    if shown.notes:
        yield from _heading("Left out, and what this rests on", shown, width, columns=False)
        yield from (line for note in shown.notes for line in wrapped(note, width, first="  - ", rest="    "))


def _verdict(shown: View, width: int) -> Iterator[Text]:
    yield from wrapped(shown.headline, width, first="", rest="    ", style="bold")
    for sentence in shown.verdict:
        yield from wrapped(sentence, width, first="  ", rest="  ")
    if shown.next_step:
        yield from wrapped(f"next: {shown.next_step}", width, first="  ", rest="        ", style="bold")


def wrapped(line: str, width: int, *, first: str, rest: str, style: str = "") -> Iterator[Text]:
    """A paragraph broken into lines, the first and the others indented."""
    for piece in textwrap.wrap(line, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False):
        yield Text(piece, style)


def _paragraphs(lines: tuple[str | None, ...], width: int, indent: int = 2) -> Iterator[Text]:
    for line in lines:
        yield from wrapped(line or "", width, first=" " * indent, rest=" " * indent)


def _heading(title: str, shown: View, width: int, *, columns: bool = True) -> Iterator[Text]:
    yield Text()
    heading = Text(title, "bold")
    if columns:
        heading.truncate(width - POINTS - TIME, pad=True)
        heading.append("points".rjust(POINTS), "dim")
        heading.append(f"{shown.column.unit}/{shown.per}".rjust(TIME), "dim")
    yield heading


def _with_numbers(left: Text, points: float, time_ns: float, shown: View, width: int, style: str = "") -> Text:
    left.truncate(width - POINTS - TIME, overflow="ellipsis", pad=True)
    left.append(text.points(points).rjust(POINTS), style)
    return left.append(shown.column.show(time_ns).rjust(TIME), style)


def _bar_line(bar: Bar, shown: View, width: int) -> Text:
    cells = width - POINTS - TIME - LABEL - 3
    drawn = text.bar(bar.low, bar.high, cells)
    colour = text.WALLS[bar.wall].colour if bar.wall else "bold"
    line = Text(f"  {bar.label}".ljust(LABEL + 2), "bold" if bar.wall in (None, "mfu") else "")
    for char in drawn:
        line.append(char, "dim" if char == text.EMPTY else colour)
    return _with_numbers(line, bar.points, bar.time_ns, shown, width, "bold" if bar.wall in (None, "mfu") else "")


def _cause(number: int, cause: Cause, shown: View, width: int) -> Iterator[Text]:
    title = Text(f"{number:2}. ").append("■ ", text.WALLS[cause.wall].colour).append(cause.title, "bold")
    title.append(f" ({cause.basis})", "dim")
    yield _with_numbers(title, cause.points, cause.time_ns, shown, width, "bold")
    yield from wrapped(cause.meaning, width, first="      ", rest="      ", style="italic")
    for top in cause.top:
        yield _with_numbers(
            _contributor(top.name, top.op, top.times, width), top.points, top.time_ns, shown, width, "dim"
        )


def _contributor(name: str, op: str | None, times: str, width: int) -> Text:
    """Op and kernel share what the numbers leave; the op says more, so it is cut last."""
    tail = f"  {times}×"
    room = width - POINTS - TIME - 8 - len(tail)
    op_part = f"{text.clip(op, max(int(room * OP_SHARE), room - len(name) - 2))}  " if op else ""
    return Text(f"      {op_part}{text.clip(name, room - len(op_part))}{tail}", "dim")


def _findings(shown: View, width: int) -> Iterator[Text]:
    found = shown.findings
    yield from _heading("Findings", shown, width, columns=bool(found.cards or found.remarks))
    yield from _paragraphs((found.answer,), width)
    for number, card in enumerate(found.cards, 1):
        yield from _card(number, card, shown, width)
    for title, remarks in shown.lists:
        yield from _paragraphs((title,), width)
        for remark in remarks:
            mark = Text("   ").append("■ ", text.WALLS[remark.wall].colour).append(remark.title)
            yield _with_numbers(mark, remark.points, remark.time_ns, shown, width)


def _card(number: int, card: Card, shown: View, width: int) -> Iterator[Text]:
    first, *rest = textwrap.wrap(card.title, width - POINTS - TIME - 7, break_on_hyphens=False) or [""]
    title = Text(f"{number:2}. ").append("■ ", text.WALLS[card.wall].colour).append(first, "bold")
    yield _with_numbers(title, card.points, card.time_ns, shown, width, "bold")
    yield from (Text(f"      {more}", "bold") for more in rest)
    for line in card.lines:
        label = f"      {line.label}".ljust(CARD)
        if line.is_code:
            yield Text(label.rstrip(), "dim")
            yield from (Text(f"        {piece}", "dim") for piece in _code(line.words, width - 8))
        else:
            yield from wrapped(line.words, width, first=label, rest=" " * CARD)
    yield Text()


def _code(snippet: str, room: int) -> Iterator[str]:
    """A snippet's lines, whole: a comment that doesn't fit beside its line stands below it, and what still doesn't is wrapped."""
    for line in snippet.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        code, mark, comment = line.partition("  # ")
        fits = len(line) <= room or not mark
        pieces = [line] if fits else [code.rstrip(), f"{indent}# {comment.strip()}"]
        for piece in pieces:
            yield from textwrap.wrap(piece, room, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _number(number: Number, width: int) -> Iterator[Text]:
    basis = f" [{number.basis}]" if number.basis else ""
    first = f"  {number.label}".ljust(LABEL_OF_NUMBER) + text.plain(number.value).rjust(VALUE) + "  "
    yield from wrapped(number.meaning + basis, width, first=first, rest=" " * len(first))


def _gpus(shown: View, width: int) -> Iterator[Text]:
    if not shown.gpus:
        return
    yield Text()
    rows = (shown.gpu_header, *shown.gpus)
    widths = [max(len(row[column]) for row in rows) for column in range(len(shown.gpu_header))]
    for place, row in enumerate(rows):
        cells = [
            cell.ljust(w) if not column else cell.rjust(w)
            for column, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield Text("  " + "  ".join(cells), "" if place else "dim")
    yield from _paragraphs((shown.more_gpus,), width)


def table(one: Table, width: int) -> Iterator[Text]:
    """A table below its title, cells cut so that it fits."""
    yield Text()
    yield Text(one.title, "bold")
    rows = [one.header, *one.rows]
    widths = _widths(one, width - 2)
    for place, row in enumerate(rows):
        line = Text("  ")
        for column, (cell, cells) in enumerate(zip(row, widths, strict=True)):
            shown = text.clip(cell, cells) if column in one.names else cell
            part = Text(shown, "dim" if place == 0 else "bold red" if cell == "FAIL" else "")
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
