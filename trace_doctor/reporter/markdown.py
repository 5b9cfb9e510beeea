"""The report as GitHub Markdown, for a pull request or a post-mortem: the terminal's words in the terminal's order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from trace_doctor.report import Report
from trace_doctor.reporter import text
from trace_doctor.reporter.view import Card, Cause, View, view

MARKER = "<!-- trace-doctor -->"
"""First line: whoever updates a comment finds it by this."""
MOST_BYTES = 60_000
"""GitHub refuses a comment above 65,536 characters as a whole."""
CELLS = 24
NAME = 70
OP = 50
_BREAKER = "<!-- -->"


class Block(NamedTuple):
    """A part of the document; of those that may go, the one with the highest rank goes first when space is short."""

    lines: list[str]
    rank: int = 0


def render(report: Report, *, most_bytes: int = MOST_BYTES) -> str:
    """The report as Markdown of at most `most_bytes` bytes: detail is left out as whole blocks, and said so."""
    shown = view(report)
    blocks = [
        Block([MARKER, f"## {escape(shown.headline)}", "", f"**{escape(shown.subject)}**", ""]),
        Block(_verdict(shown)),
        Block(_walls(shown)),
        *(Block(_card(number, card), 2) for number, card in enumerate(shown.findings, 1)),
        Block(_more(shown.more_findings), 2),
        Block(_causes(shown)),
        Block(_contributors(shown.causes, shown), 5),
        Block(_steps(shown), 3),
        Block(_gpus(shown), 4),
        Block(_notes(shown), 3),
    ]
    return _fitted(blocks, most_bytes)


def _fitted(blocks: list[Block], most_bytes: int) -> str:
    kept = blocks
    while len((document := _document(kept, whole=kept is blocks)).encode()) > most_bytes:
        last = max(range(len(kept)), key=lambda place: (kept[place].rank, place))
        if not kept[last].rank:
            break
        kept = kept[:last] + kept[last + 1 :]
    return document


def _document(blocks: list[Block], *, whole: bool) -> str:
    lines = [line for block in blocks for line in block.lines]
    if not whole:
        lines += ["_Some detail was left out to fit a comment: the JSON report has all of it._", ""]
    return text.plain("\n".join(lines)).rstrip() + "\n"


def escape(prose: str) -> str:
    """Text that Markdown and GitHub show as it stands: no emphasis, table, link, mention, reference or formula."""
    escaped = re.sub(r"[\\`*_\[\]<>|~$&]", r"\\\g<0>", " ".join(re.split(r"[\r\n]+", prose)).lstrip())
    escaped = re.sub(r"^(\d+(?=[.)](?:\s|$))|(?=[-#+=]))", r"\1\\", escaped)
    return re.sub(r"@|#(?=\w)|(?<=[Gg][Hh])-(?=\d)|\b[Ww]{3}(?=\.)|:(?=//|\w+:)", rf"\g<0>{_BREAKER}", escaped)


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


def _folded(title: str, lines: list[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""] if lines else []


def _more(line: str | None) -> list[str]:
    return [f"_{escape(line)}_", ""] if line else []


def _verdict(shown: View) -> list[str]:
    lines = [part for sentence in shown.verdict for part in (escape(sentence), "")]
    if shown.next_step:
        lines += [f"**Next:** {escape(shown.next_step)}", ""]
    return [*lines, " · ".join(escape(fact) for fact in shown.facts), ""]


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


def _card(number: int, card: Card) -> list[str]:
    lines = ["### Findings", ""] if number == 1 else []
    lines += [
        f"**{number}. {escape(card.title)}**: {text.points(card.points)} points, {text.duration(card.time_ns)}",
        "",
    ]
    lines += [f"- seen: {escape(line)}" for line in card.evidence]
    lines += [f"- fix: {escape(card.fix)}"] if card.fix else []
    if card.code:
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", card.code)), default=0))
        lines += ["", f"{fence}python", card.code, fence]
    return [*lines, ""]


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
    return ["### Largest causes", "", *table(header, rows, right=(1, 2)), "", *_more(shown.more_causes)]


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
    return _folded("Kernels and ops of the causes", table(header, rows, right=(3, 4)) if rows else [])


def _steps(shown: View) -> list[str]:
    return _folded("Steps", [f"- {escape(line)}" for line in shown.steps])


def _gpus(shown: View) -> list[str]:
    if not shown.gpus:
        return []
    rows = [[escape(cell) for cell in row] for row in shown.gpus]
    lines = table(shown.gpu_header, rows, right=range(1, len(shown.gpu_header)))
    return _folded("GPUs", [*lines, *(["", escape(shown.more_gpus)] if shown.more_gpus else [])])


def _notes(shown: View) -> list[str]:
    return _folded("What this rests on", [f"- {escape(note)}" for note in shown.notes])
