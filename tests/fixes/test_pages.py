"""Every rule has a page, the pages are alike, and what they state is what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from tests.fixes.build import findings, ran
from tests.fixes.test_examples import EXAMPLES
from trace_doctor.cli.analyze import analyze
from trace_doctor.errors import UsageError
from trace_doctor.fixes import pages
from trace_doctor.fixes.pages import Page
from trace_doctor.fixes.registry import RULES
from trace_doctor.options import Limits
from trace_doctor.report import WALLS

FOLDER = Path(__file__).parents[2] / "docs/rules"
HEADINGS = [
    "What it sees", "How it is computed", "When it is wrong or silent", "Fix", "How to verify", "Sources",
]  # fmt: skip
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
THRESHOLD = re.compile(r"`(-{0,2}[a-z-]+)` \((\d[\d.]*)\)")

each_page = pytest.mark.parametrize("page", pages.pages().values(), ids=lambda page: page.code)


def test_every_rule_has_a_page_and_every_page_a_rule() -> None:
    assert sorted(pages.pages()) == sorted(rule.code for rule in RULES)
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(
        [*(f"{code}.md" for code in pages.pages()), "README.md"]
    )


@each_page
def test_a_page_is_called_as_its_rule(page: Page) -> None:
    assert (FOLDER / f"{page.code}.md").read_text() == page.text


@each_page
def test_headings_are_uniform(page: Page) -> None:
    assert re.findall(r"^#+ (.+)$", BLOCK.sub("", page.text), re.MULTILINE) == [page.code, *HEADINGS]


@each_page
def test_the_head_uses_the_words_of_the_report(page: Page) -> None:
    assert {wall.replace(" ", "_") for wall in page.walls} <= set(WALLS)
    assert page.severities in (("info",), ("info", "warning", "error"), ("warning", "error"))
    assert page.summary.endswith(".")


@each_page
def test_the_fix_shows_code_before_and_after(page: Page) -> None:
    fix = page.text.partition("## Fix\n")[2].partition("## How to verify")[0]
    assert fix.count("\nBefore:\n\n```") == fix.count("\nAfter:\n\n```") == 1
    blocks = BLOCK.findall(fix)
    assert len(blocks) >= 2
    assert {language for language, _ in blocks} <= {"python", "bash"}
    assert blocks[0][1] != blocks[1][1]


@each_page
def test_python_in_a_page_compiles(page: Page) -> None:
    for language, code in BLOCK.findall(page.text):
        if language == "python":
            ast.parse(code)


def _defaults() -> dict[str, float]:
    """Thresholds by the names that pages use: keys of [limits], and flags."""
    limits = {name.replace("_", "-"): float(getattr(Limits(), name)) for name in Limits.__struct_fields__}
    options = [one for one in analyze.params if isinstance(one, click.Option) and isinstance(one.default, (int, float))]
    return limits | {one.opts[0]: float(one.default) for one in options}


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_thresholds_are_those_of_the_code(path: Path) -> None:
    text = path.read_text().replace("\n", " ")
    stated = {(name, float(value)) for name, value in THRESHOLD.findall(text)}
    assert stated == {(name, _defaults()[name]) for name, _ in stated}
    named = set(re.findall(r"`([a-z-]+)`", text)) & set(_defaults())
    assert named <= {name for name, _ in stated}


@each_page
def test_sources_are_public(page: Page) -> None:
    sources = page.text.partition("## Sources\n")[2]
    assert len(re.findall(r"\]\(https://[^)\s]+\)", sources)) >= 1
    assert re.findall(r"\]\((?!https://)", sources) == []


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(((?!https:)[^)#]+)\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_list_names_each_rule_once_with_its_summary() -> None:
    listed = re.findall(r"^\| \[(\S+)\]\((\S+)\.md\) \| (.+) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted((page.code, page.code, page.summary) for page in pages.pages().values())


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_findings_are_as_their_page_says(name: str) -> None:
    found = findings(ran(EXAMPLES[name].program, EXAMPLES[name].made))
    told = {code: pages.find(code) for code in found}
    assert {
        code: one.wall.replace("_", " ")
        for code, one in found.items()
        if one.wall.replace("_", " ") not in told[code].walls
    } == {}
    assert {code: one.severity for code, one in found.items() if one.severity not in told[code].severities} == {}


def test_an_unknown_code_names_those_near_it() -> None:
    with pytest.raises(UsageError) as error:
        pages.find("launch-bond")
    assert str(error.value) == (
        "no rule is called 'launch-bond'\n  next: did you mean launch-bound? trace-doctor rules lists them"
    )
    with pytest.raises(UsageError) as error:
        pages.find("zzz")
    assert str(error.value) == "no rule is called 'zzz'\n  next: trace-doctor rules lists them"


def test_a_text_without_the_head_of_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="no head of a rule's page: '# launch-bound"):
        pages.parse("# launch-bound\n\nwithout a table\n")
