"""Fifty hostile names go through a whole analysis, and no format is harmed by them."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reporter.pictured import HOSTILE_NAMES
from tests.simulator import US, Run, kineto, work
from trace_doctor import analyze, compare
from trace_doctor.report import Report, to_json
from trace_doctor.reporter import comparison_markdown, comparison_terminal, markdown, post_mortem, terminal

STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but the line break, and marks that turn the direction of text."""


def hostile_run() -> Run:
    """Every name is a kernel, the op that launched it, and a range around it; each kernel is worth a row."""
    run = Run()
    for _ in range(2):
        with run.step():
            for place, name in enumerate(HOSTILE_NAMES):
                op = work.add([4096, 4096], duration_ns=(200 + place) * US)
                named = replace(op, name=name or "x", launches=(replace(op.launches[0], name=name or "x"),))
                with run.range(name or "x", "user_annotation"):
                    run.do(named)
    return run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("hostile")
    return analyze([kineto.write(hostile_run(), folder / "trace.json")])


def test_all_names_are_in_the_report(report: Report) -> None:
    assert len(HOSTILE_NAMES) == 50
    assert len({row.name for row in report.kernels.rows} & set(HOSTILE_NAMES)) >= 45


def test_no_format_for_a_terminal_is_steered(report: Report) -> None:
    for printed in (terminal.render(report), comparison_terminal.render(compare([report, report, report]))):
        assert not STEERING.search(printed)
        assert max(map(len, printed.splitlines())) <= terminal.WIDTH


def test_no_markdown_holds_tags_mentions_or_too_much(report: Report) -> None:
    pages = (
        markdown.render(report),
        post_mortem.render(report),
        comparison_markdown.render(compare([report, report], ["mfu<-1pt"])),
    )
    for page in pages:
        assert len(page.encode()) < markdown.BELOW_BYTES
        assert not STEERING.search(page)
        prose = re.sub(r"(?s)```.*?```", "", page)
        prose = re.sub(r"\\.", "", re.sub(r"(`+)(?:(?!\1).)*?\1(?!`)", "", prose))
        assert set(re.findall(r"</?([a-zA-Z]+)", prose)) <= {"details", "summary", "code", "b", "sub"}
        assert not re.search(r"(?<!\w)@(?!<!-- -->)\w", prose)


def test_json_holds_the_names_as_they_are(report: Report) -> None:
    names = {row["name"] for row in json.loads(to_json(report))["kernels"]["rows"]}
    assert names == {row.name for row in report.kernels.rows}
    assert gzip.decompress(gzip.compress(to_json(report))) == to_json(report)


def test_a_path_is_a_name_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)> `|` \x1b[31m"
    folder.mkdir()
    run = Run()
    with run.step():
        run.do(work.add([4096, 4096]))
    found = analyze([kineto.write(run, folder / "a|b`c.json")])
    for page in (terminal.render(found), markdown.render(found), post_mortem.render(found)):
        assert not STEERING.search(page)
        assert "<img" not in re.sub(r"(`+)(?:(?!\1).)*?\1(?!`)", "", page).replace("\\<", "")
