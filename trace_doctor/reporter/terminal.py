"""The report for a terminal: fits 80 columns, needs no colour, and falls back to ASCII."""

from __future__ import annotations

import io
import textwrap
import unicodedata
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from trace_doctor.report import Report
from trace_doctor.reporter import text
from trace_doctor.reporter.view import Bar, Card, Cause, View, view

WIDTH = 80
WIDEST = 100
NARROWEST = 60
LABEL = 20
POINTS = 8
TIME = 11
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
    }
)


def render(report: Report, *, width: int = WIDTH, colour: str | None = None, ascii_only: bool = False) -> str:
    """The report as text for a terminal of `width` columns.

    `colour` is one of rich's colour systems ("standard", "256", "truecolor"), null for none. With `ascii_only` every
    character is ASCII and as wide as the one it stands for.
    """
    width = min(max(width, NARROWEST), WIDEST)
    out = io.StringIO()
    console = Console(
        file=out, width=width, color_system=colour, force_terminal=colour is not None, no_color=False,  # type: ignore[arg-type]
        markup=False, highlight=False, emoji=False, legacy_windows=False, _environ={},
    )  # fmt: skip
    for line in _lines(view(report), width):
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
    if shown.findings:
        yield from _heading("Findings", shown, width)
        for number, card in enumerate(shown.findings, 1):
            yield from _card(number, card, shown, width)
        yield from _paragraphs((shown.more_findings,), width)
    if shown.causes:
        yield from _heading("Largest causes", shown, width)
        for number, cause in enumerate(shown.causes, 1):
            yield from _cause(number, cause, shown, width)
        yield from _paragraphs((shown.more_causes,), width, indent=4)
    yield from _heading("Steps", shown, width, columns=False)
    yield from _paragraphs(shown.steps, width)
    yield from _gpus(shown, width)
    if shown.notes:
        yield from _heading("What this rests on", shown, width, columns=False)
        yield from (line for note in shown.notes for line in _wrapped(note, width, first="  - ", rest="    "))


def _verdict(shown: View, width: int) -> Iterator[Text]:
    yield from _wrapped(shown.headline, width, first="", rest="    ", style="bold")
    for sentence in shown.verdict:
        yield from _wrapped(sentence, width, first="  ", rest="  ")
    if shown.next_step:
        yield from _wrapped(f"next: {shown.next_step}", width, first="  ", rest="        ", style="bold")
    yield Text()
    yield from _wrapped(" · ".join(_joined(fact) for fact in shown.facts), width, first="  ", rest="  ")


def _joined(fact: str) -> str:
    """A fact that is not broken over two lines."""
    return fact.replace(" ", text.SPACE)


def _wrapped(line: str, width: int, *, first: str, rest: str, style: str = "") -> Iterator[Text]:
    for piece in textwrap.wrap(line, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False):
        yield Text(piece, style)


def _paragraphs(lines: tuple[str | None, ...], width: int, indent: int = 2) -> Iterator[Text]:
    for line in lines:
        yield from _wrapped(line or "", width, first=" " * indent, rest=" " * indent)


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
    yield from _wrapped(cause.meaning, width, first="      ", rest="      ", style="italic")
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


def _card(number: int, card: Card, shown: View, width: int) -> Iterator[Text]:
    title = Text(f"{number:2}. ").append("■ ", text.WALLS[card.wall].colour).append(card.title, "bold")
    yield _with_numbers(title, card.points, card.time_ns, shown, width, "bold")
    for line in card.evidence:
        yield from _wrapped(line, width, first="      seen: ", rest="            ")
    if card.fix:
        yield from _wrapped(card.fix, width, first="      fix:  ", rest="            ")
    for line in (card.code or "").splitlines():
        yield Text(f"        {line}", "dim")


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
