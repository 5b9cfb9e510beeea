from __future__ import annotations

import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.reporter import golden, samples
from trace_doctor.report import Message, Report
from trace_doctor.reporter import markdown, terminal, text, verdict
from trace_doctor.reporter.view import view

markdown_it = pytest.importorskip("markdown_it")

REPORTS = {
    "healthy": samples.healthy,
    "poor": samples.poor,
    "busy_but_slow": samples.busy_but_slow,
    "hostile": samples.hostile,
}


def rendered(source: str) -> str:
    """HTML as CommonMark with GitHub's tables has it; raw HTML let through, as GitHub does for comments and details."""
    drawn: str = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(source)
    return drawn


def rows_of(drawn: str) -> list[list[int]]:
    """Cells of each row, table by table."""
    return [
        [len(re.findall(r"<t[hd][ >]", line)) for line in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)]
        for table in re.findall(r"<table>.*?</table>", drawn, re.DOTALL)
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
    drawn = rendered(markdown.escape(paragraph))
    assert re.fullmatch(r"<p>[^<]*(<!-- -->[^<]*)*</p>\n", drawn), drawn


@settings(max_examples=60)
@given(st.text(alphabet=st.sampled_from("ab \\`|*_<>[]@"), max_size=20))
def test_code_in_a_table_stays_in_its_cell(name: str) -> None:
    drawn = rendered("\n".join(markdown.table(["a", "b"], [[markdown.code(name), "z"]])))
    assert rows_of(drawn) == [[2, 2]]
    assert "<td>z</td>" in drawn


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
    fits_and_is_whole(markdown.render(report))


def fits_and_is_whole(source: str) -> None:
    assert len(source.encode()) < 60_000
    assert source.count("<details") == source.count("</details>")
    tables = rows_of(rendered(source))
    assert [len(set(table)) for table in tables] == [1] * len(tables)


@settings(max_examples=5)
@given(st.sampled_from(["x", "@", "😀", "*`|<", "中", "://w"]))
def test_a_thousand_gpus_and_names_of_ten_kilobytes_fit_a_comment(char: str) -> None:
    report = samples.hostile((char * 10_000)[:10_000])
    monster = replace(
        report,
        findings=report.findings * 20,
        gpus=(report.gpus * 52)[:1024],
        ledger=report.ledger * 3,
        warnings=report.warnings * 200,
        coverage=replace(report.coverage, why=report.coverage.why * 50),
        window=replace(report.window, steps=report.window.steps * 300),
    )
    fits_and_is_whole(markdown.render(monster))


@pytest.mark.parametrize("below_bytes", [6_000, 5_000, 4_000, 3_000])
def test_short_of_space_it_drops_whole_blocks_in_a_fixed_order_and_names_them(below_bytes: int) -> None:
    whole = markdown.render(samples.busy_but_slow())
    short = markdown.render(samples.busy_but_slow(), below_bytes=below_bytes)
    assert len(short.encode()) < below_bytes < len(whole.encode())
    dropped = re.findall(r"_Left out to stay below [\d,]+ bytes: (.*)\. The JSON report has all of it\._", short)
    names = re.split(", | and (?!ops)", dropped[0])
    order = [
        "kernels and ops of the ledger", "the table of GPUs", "the steps", "findings in one line", "what was left out",
        "the ledger", "finding 1", "the numbers",
    ]  # fmt: skip
    assert names == order[: len(names)]
    assert "MFU 17.3 %" in short
    assert "Where the time goes" in short


def test_the_first_finding_is_open_and_all_details_are_folded() -> None:
    source = markdown.render(samples.busy_but_slow())
    assert source.count("<details open>") == 1
    assert "<details open><summary><b>1. Exposed communication: all-reduce" in source
    assert "<details><summary>1 remark" in source


def test_a_title_in_a_summary_is_escaped_for_html() -> None:
    source = markdown.render(samples.hostile("<script>@all #1 https://e.vil"))
    assert "<script>" not in rendered(source)
    assert "<b>1. &lt;script&gt;@<!-- -->all #<!-- -->1 https:<!-- -->//e.vil" in source


def test_terminal_and_markdown_say_a_finding_in_the_same_words_and_order() -> None:
    report = samples.busy_but_slow()
    source = html.unescape(markdown.render(report).replace("\\", "").replace("<!-- -->", ""))
    drawn = " ".join(terminal.render(report).split())
    lines = [line for line in view(report).findings.cards[0].lines if not line.is_code]
    assert [line.label for line in lines] == [
        "cause",
        "confidence",
        "where",
        "seen",
        "seen",
        "fix",
        "risk",
        "check",
        "more",
    ]
    in_source = [source.index(f"**{line.label}:** {text.plain(line.words)}") for line in lines]
    in_drawn = [drawn.index(f"{line.label} {text.plain(line.words)}") for line in lines]
    assert in_source == sorted(in_source)
    assert in_drawn == sorted(in_drawn)


def test_code_of_a_fix_is_fenced_beyond_its_own_backticks() -> None:
    assert "````\n```\n````" in markdown.render(samples.hostile("```"))


def test_an_empty_report_is_written() -> None:
    assert "MFU unknown" in markdown.render(Report())
