from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.reporter import golden, samples
from trace_doctor.report import Message, Report
from trace_doctor.reporter import markdown, text, verdict

markdown_it = pytest.importorskip("markdown_it")

REPORTS = {
    "healthy": samples.healthy,
    "poor": samples.poor,
    "busy_but_slow": samples.busy_but_slow,
    "hostile": samples.hostile,
}


def rendered(source: str) -> str:
    """HTML as CommonMark with GitHub's tables has it; raw HTML let through, as GitHub does for comments and details."""
    html: str = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(source)
    return html


def rows_of(html: str) -> list[list[int]]:
    """Cells of each row, table by table."""
    return [
        [len(re.findall(r"<t[hd][ >]", line)) for line in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)]
        for table in re.findall(r"<table>.*?</table>", html, re.DOTALL)
    ]


@pytest.mark.parametrize("name", REPORTS)
def test_golden(name: str) -> None:
    golden.hold(f"{name}.md", markdown.render(REPORTS[name]()))


@pytest.mark.parametrize("name", REPORTS)
def test_every_table_is_whole(name: str) -> None:
    source = markdown.render(REPORTS[name]())
    tables = rows_of(rendered(source))
    assert len(tables) == sum(line.startswith("| ---") for line in source.splitlines())
    assert [len(set(table)) for table in tables] == [1] * len(tables)
    assert sum(len(table) for table in tables) == sum(line.startswith("|") for line in source.splitlines()) - len(
        tables
    )


@pytest.mark.parametrize("name", REPORTS)
def test_it_starts_with_the_marker_and_ends_in_one_line_break(name: str) -> None:
    source = markdown.render(REPORTS[name]())
    assert source.splitlines()[0] == "<!-- trace-doctor -->"
    assert source.endswith("\n")
    assert not source.endswith("\n\n")


@settings(max_examples=60)
@given(st.text(alphabet=st.sampled_from("ab1 \\`*_{}[]()<>#+-.!|~$&@:/=\n\t\"'^"), max_size=40))
def test_escaped_prose_reads_as_it_stands(prose: str) -> None:
    paragraph = f"x {prose}"
    html = rendered(markdown.escape(paragraph))
    assert re.fullmatch(r"<p>[^<]*(<!-- -->[^<]*)*</p>\n", html), html


@settings(max_examples=60)
@given(st.text(alphabet=st.sampled_from("ab \\`|*_<>[]@"), max_size=20))
def test_code_in_a_table_stays_in_its_cell(name: str) -> None:
    html = rendered("\n".join(markdown.table(["a", "b"], [[markdown.code(name), "z"]])))
    assert rows_of(html) == [[2, 2]]
    assert "<td>z</td>" in html


@pytest.mark.parametrize(
    "prose", ["@everyone", "see #12 or GH-3", "https://evil.example", "www.evil.example", ":smile:"]
)
def test_github_sees_no_mention_reference_link_or_emoji(prose: str) -> None:
    escaped = markdown.escape(prose)
    assert "<!-- -->" in escaped
    assert escaped.replace("<!-- -->", "") == prose


@pytest.mark.parametrize(
    "prose", ["# title", "- item", "1. item", "2) item", "+ item", "=====", "---", "> quote", "    code"]
)
def test_prose_opens_no_block(prose: str) -> None:
    assert rendered(markdown.escape(prose)) == f"<p>{prose.strip().replace('>', '&gt;')}</p>\n"


@pytest.mark.parametrize("prose", ["60.0 ms", "17.3 %", "2)b", "3 of 4 steps"])
def test_a_number_that_opens_no_list_is_left_as_it_is(prose: str) -> None:
    assert markdown.escape(prose) == prose
    assert rendered(prose) == f"<p>{prose}</p>\n"


def test_it_says_what_the_terminal_says() -> None:
    report = samples.busy_but_slow()
    source = markdown.render(report)
    places = [
        source.index(text.plain(markdown.escape(line)))
        for line in (verdict.headline(report), *verdict.sentences(report))
    ]
    assert places == sorted(places)


@settings(max_examples=10)
@given(st.sampled_from(["😀", "|", "@", "`", "\x1b", "a"]), st.integers(1, 3))
def test_it_fits_a_comment_whatever_the_report(char: str, factor: int) -> None:
    report = samples.hostile(char * 2_000)
    report = replace(
        report,
        warnings=[Message(code="x", message=f"{n} {char * 3_000}") for n in range(100 * factor)],
        findings=report.findings * 40,
        gpus=report.gpus * 10 * factor,
        ledger=report.ledger * 5,
    )
    source = markdown.render(report)
    assert len(source.encode()) < 60_000
    assert source.count("<details>") == source.count("</details>")


def test_short_of_space_it_drops_whole_blocks_and_says_so() -> None:
    whole, short = markdown.render(samples.busy_but_slow()), markdown.render(samples.busy_but_slow(), most_bytes=4_500)
    assert len(short.encode()) <= 4_500 < len(whole.encode())
    assert "Some detail was left out" in short
    assert "Largest causes" in short
    assert "Kernels and ops" not in short


def test_code_of_a_fix_is_fenced_beyond_its_own_backticks() -> None:
    assert "````python\n```\n````" in markdown.render(samples.hostile("```"))


def test_an_empty_report_is_written() -> None:
    assert "MFU unknown" in markdown.render(Report())
