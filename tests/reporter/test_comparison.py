"""Comparisons for people: the same words in the terminal and in Markdown, and names that do nothing."""

from __future__ import annotations

import pytest

from tests.compare.build import finding, kernel, report, row
from trace_doctor.comparing.assembly import compare
from trace_doctor.comparison import Comparison
from trace_doctor.report import Kernels
from trace_doctor.reporter import comparison_markdown, comparison_terminal
from trace_doctor.reporter.comparison_view import headline

NASTY = "</details><script>alert(1)</script>|`x`\x1b[31m\u202e@team [a](http://b) " + "long" * 2500


def changed(name: str = "ncclKernel") -> Comparison:
    base = report(
        row("mfu", "model FLOPs", 10, 10, 10, 10, 10),
        row("host", "input pipeline", 1, 1, 1, 1, 1, names=(name,)),
        path=f"runs/{name}.json",
        kernels=Kernels(rows=[kernel(name), kernel("gone")]),
    )
    new = report(
        row("mfu", "model FLOPs", 10, 10, 10, 10, 10),
        row("communication", "wire time", 3, 3.1, 3.2, 3.3, 3.4, names=(name,)),
        kernels=Kernels(rows=[kernel(name, time_ms=5)]),
        findings=[finding("slow-link", 30), finding(name[:40], 3)],
    )
    return compare([base, new, new], ["step_time>+3%", "new:warning"])


def test_the_headline_says_how_much_and_whether_it_is_proven() -> None:
    steady, slower = report(row("host", "x", *[10.0] * 5)), report(row("host", "x", 12, 12.1, 12.2, 12.3, 12.4))
    assert headline(compare([steady, slower])) == (
        "A step takes 12.2\u00a0ms instead of 10.0\u00a0ms: +22.0\u00a0% (proven, p = 0.0075)"
    )
    assert headline(compare([steady, steady])) == "No difference: a step takes 10.0\u00a0ms"
    few = report(row("host", "x", 10)), report(row("host", "x", 12))
    assert headline(compare(few)).endswith("+20.0\u00a0% (not tested: 1 and 1 steps are too few)")


def test_both_formats_say_the_same() -> None:
    found = changed()
    printed = " ".join(comparison_terminal.render(found, width=100).split())
    for words in ("input pipeline", "wire time", "Gates", "FAIL", "Sweep, best first"):
        assert words in printed
        assert words in comparison_markdown.render(found)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for name in ("ncclKernel", NASTY):
        assert max(map(len, comparison_terminal.render(changed(name), width=width).splitlines())) <= width


def test_names_steer_neither_terminal_nor_page() -> None:
    printed, page = comparison_terminal.render(changed(NASTY)), comparison_markdown.render(changed(NASTY))
    assert "\x1b" not in printed + page
    assert "\u202e" not in printed + page
    outside = [line for line in page.splitlines() if "script" in line]
    assert outside
    assert all("<script>" not in _without_code(line) for line in outside)


def _without_code(line: str) -> str:
    """The line without its code spans and without escaped characters."""
    import re

    return re.sub(r"\\.", "", re.sub(r"(`+)(?:(?!\1).)*?\1", "", line))


def test_markdown_stays_below_its_size_and_says_what_it_leaves_out() -> None:
    found = changed(NASTY)
    small = comparison_markdown.render(found, below_bytes=3_000)
    assert len(small.encode()) < 3_000
    assert "Left out to stay below 3,000 bytes: Kernels that came, went or changed" in small


def test_ascii_is_ascii() -> None:
    assert comparison_terminal.render(changed(NASTY), ascii_only=True).isascii()
