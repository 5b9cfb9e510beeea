"""The report as GitHub Markdown, for a pull request or a post-mortem: the terminal's words in the terminal's order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape as escape_html
from typing import NamedTuple

from trace_doctor.report import Report
from trace_doctor.reporter import text
from trace_doctor.reporter.cards import Card, Remark
from trace_doctor.reporter.tables import Table
from trace_doctor.reporter.view import Cause, View, view

MARKER = "<!-- trace-doctor -->"
"""First line: whoever updates a comment finds it by this."""
BELOW_BYTES = 60_000
"""GitHub refuses a comment above 65,536 characters as a whole."""
CELLS = 24
NAME = 70
OP = 50
_BREAKER = "<!-- -->"
_REFERENCE = re.compile(r"@|#(?=\w)|(?<=[Gg][Hh])-(?=\d)|\b[Ww]{3}(?=\.)|:(?=//|\w+:)|(?<!\\)\$")
"""Where GitHub sees a mention, reference, link, emoji or formula."""


class Block(NamedTuple):
    """A part of the document; of those that may go, the one with the highest rank goes first when space is short."""

    name: str
    """What the reader misses where it is left out."""
    lines: list[str]
    rank: int = 0
    """0: always there."""


def render(report: Report, *, below_bytes: int = BELOW_BYTES) -> str:
    """The report as Markdown of fewer than `below_bytes` bytes: whole blocks are left out, in a fixed order, and named."""
    shown = view(report)
    blocks = [
        Block("", [MARKER, f"## {escape(shown.headline)}", "", f"**{escape(shown.subject)}**", ""]),
        Block("", _verdict(shown)),
        Block("", _walls(shown)),
        Block("", ["### Findings", "", *_paragraph(shown.findings.answer)]),
        *(
            Block(f"finding {place}", _card(place, card, shown), 2)
            for place, card in enumerate(shown.findings.cards, 1)
        ),
        *(Block("findings in one line", _remarks(title, remarks, shown), 5) for title, remarks in shown.lists),
        Block("the numbers", _numbers(shown), 1),
        Block("the steps", folded("Steps", _bullets(shown.steps)), 6),
        Block("the table of kernels", drawn(shown.kernels) if shown.kernels.rows else [], 7),
        Block("the table of GPUs", _gpus(shown), 8),
        Block("the ledger", _causes(shown), 3),
        Block("kernels and ops of the ledger", _contributors(shown.causes, shown), 9),
        Block("what was left out", folded("Left out, and what this rests on", _bullets(shown.notes)), 4),
    ]
    return fitted(blocks, below_bytes)


def fitted(blocks: list[Block], below_bytes: int) -> str:
    """A document of fewer than `below_bytes` bytes: whole blocks are left out, highest rank first, and named."""
    kept = [block for block in blocks if block.lines]
    dropped: list[str] = []
    while len((document := _document(kept, dropped, below_bytes)).encode()) >= below_bytes:
        last = max(range(len(kept)), key=lambda place: (kept[place].rank, place))
        if not kept[last].rank:
            break
        dropped.append(kept.pop(last).name)
    return document


def _document(blocks: list[Block], dropped: list[str], below_bytes: int) -> str:
    lines = [line for block in blocks for line in block.lines]
    if dropped:
        names = text.listing(list(dict.fromkeys(dropped)))
        lines += [f"_Left out to stay below {below_bytes:,} bytes: {names}. The JSON report has all of it._", ""]
    return text.plain("\n".join(lines)).rstrip() + "\n"


def escape(prose: str) -> str:
    """Text that Markdown and GitHub show as it stands: no emphasis, table, link, mention, reference or formula."""
    escaped = re.sub(r"[\\`*_\[\]<>|~$&]", r"\\\g<0>", " ".join(re.split(r"[\r\n]+", prose)).lstrip())
    escaped = re.sub(r"^(\d+(?=[.)](?:\s|$))|(?=[-#+=]))", r"\1\\", escaped)
    return _REFERENCE.sub(rf"\g<0>{_BREAKER}", escaped)


def html(prose: str) -> str:
    """The same for text inside an HTML tag, where Markdown is not read but GitHub's references are."""
    escaped = escape_html(" ".join(re.split(r"[\r\n]+", prose)), quote=False)
    return _REFERENCE.sub(rf"\g<0>{_BREAKER}", escaped)


def code(name: str) -> str:
    """A code span for a table: fenced longer than any run of backticks in it, bars escaped."""
    name = re.sub(r"\\*\|", r"\\|", " ".join(name.split()))
    if not name:
        return ""
    fence = "`" * (max((len(run) for run in re.findall("`+", name)), default=0) + 1)
    padding = " " if name[0] == "`" or name[-1] in "`\\" else ""
    return f"{fence}{padding}{name}{padding}{fence}"


def table(header: Iterable[str], rows: Iterable[Iterable[str]], *, right: Iterable[int] = ()) -> list[str]:
    """A table whose rows all have as many cells as its header; the columns in `right` are right-aligned."""
    header, right = list(header), set(right)
    ruler = ["---:" if place in right else "---" for place in range(len(header))]
    return [f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows)]


def folded(title: str, lines: list[str], *, is_open: bool = False) -> list[str]:
    """Lines behind a title that opens on a click."""
    opening = "<details open>" if is_open else "<details>"
    return [f"{opening}<summary>{title}</summary>", "", *lines, "", "</details>", ""] if lines else []


def drawn(one: Table) -> list[str]:
    """A table below its title, folded where it is a detail."""
    rows = [
        [code(cell) if place in one.names and cell else escape(cell) for place, cell in enumerate(row)]
        for row in one.rows
    ]
    lines = [*table(one.header, rows, right=one.right), ""]
    lines += [f"_{escape(one.more)}._", ""] if one.more else []
    return folded(one.title, lines) if one.is_detail else [f"### {escape(one.title)}", "", *lines]


def _paragraph(line: str | None) -> list[str]:
    return [escape(line), ""] if line else []


def _bullets(lines: Iterable[str]) -> list[str]:
    return [f"- {escape(line)}" for line in lines]


def _verdict(shown: View) -> list[str]:
    lines = [part for sentence in shown.verdict for part in _paragraph(sentence)]
    return [*lines, *([f"**Next:** {escape(shown.next_step)}", ""] if shown.next_step else [])]


def _walls(shown: View) -> list[str]:
    rows = [
        [
            f"**{bar.label}**" if bar.wall in (None, "mfu") else bar.label,
            text.bar(bar.low, bar.high, CELLS).replace(text.EMPTY, "░"),
            text.points(bar.points),
            shown.column.show(bar.time_ns),
        ]
        for bar in shown.bars
    ]
    header = ["", "", "points", f"{shown.column.unit}/{shown.per}"]
    return [f"### {escape(shown.waterfall)}", "", *table(header, rows, right=(2, 3)), ""]


def _card(place: int, card: Card, shown: View) -> list[str]:
    """The finding's card, the first one open."""
    loss = f"{text.points(card.points)} points, {shown.column.show(card.time_ns)} {shown.column.unit}/{shown.per}"
    lines = []
    for line in card.lines:
        if line.is_code:
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", line.words)), default=0))
            lines += [
                f"- **{escape(line.label)}:**",
                "",
                f"{fence}{line.language}",
                *line.words.splitlines(),
                fence,
                "",
            ]
        else:
            lines.append(f"- **{escape(line.label)}:** {escape(line.words)}")
    return folded(f"<b>{place}. {html(card.title)}</b>: {loss}", lines, is_open=place == 1)


def _remarks(title: str, remarks: Iterable[Remark], shown: View) -> list[str]:
    rows = [[escape(one.title), text.points(one.points), shown.column.show(one.time_ns)] for one in remarks]
    return folded(html(title), table(["", "points", f"{shown.column.unit}/{shown.per}"], rows, right=(1, 2)))


def _numbers(shown: View) -> list[str]:
    rows = [[escape(cell) for cell in number] for number in shown.numbers]
    return ["### Numbers", "", *table(["", "value", "", "basis"], rows, right=(1,)), ""]


def _causes(shown: View) -> list[str]:
    if not shown.causes:
        return []
    rows = [
        [
            f"{number}. {escape(cause.title)}",
            text.points(cause.points),
            shown.column.show(cause.time_ns),
            cause.basis,
            escape(cause.meaning),
        ]
        for number, cause in enumerate(shown.causes, 1)
    ]
    header = ["cause", "points", f"{shown.column.unit}/{shown.per}", "basis", "what it is"]
    return [
        "### Ledger: the largest causes",
        "",
        *table(header, rows, right=(1, 2)),
        "",
        *_paragraph(shown.more_causes),
    ]


def _contributors(causes: tuple[Cause, ...], shown: View) -> list[str]:
    rows = [
        [
            f"{number}. {escape(cause.title)}",
            code(text.clip(top.op or "", OP)),
            f"{code(text.clip(top.name, NAME))} {top.times}×",
            text.points(top.points),
            shown.column.show(top.time_ns),
        ]
        for number, cause in enumerate(causes, 1)
        for top in cause.top
    ]
    header = ["cause", "op", f"kernel or host range, times a {shown.per}", "points", f"{shown.column.unit}/{shown.per}"]
    return folded("Kernels and ops of the ledger", table(header, rows, right=(3, 4)) if rows else [])


def _gpus(shown: View) -> list[str]:
    if not shown.gpus:
        return []
    rows = [[escape(cell) for cell in row] for row in shown.gpus]
    lines = table(shown.gpu_header, rows, right=range(1, len(shown.gpu_header)))
    return folded("GPUs", [*lines, *(["", escape(shown.more_gpus)] if shown.more_gpus else [])])
