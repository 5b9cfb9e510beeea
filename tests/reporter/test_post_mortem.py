from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.reporter import golden, samples
from tests.reporter.test_markdown import REPORTS, rendered, rows_of
from trace_doctor.report import Finding, Report, Scope, Step, Tool
from trace_doctor.reporter.post_mortem import MARKER, job, render, since


def priced(report: Report) -> Report:
    return replace(report, tool=Tool(version="0.1.0", options={"gpus": 512, "gpu_hour_price": 2.5}))


@pytest.mark.parametrize("name", REPORTS)
def test_golden(name: str) -> None:
    golden.hold(f"{name}.post-mortem.md", render(priced(REPORTS[name]())))


@pytest.mark.parametrize("name", REPORTS)
def test_it_is_whole(name: str) -> None:
    source = render(REPORTS[name]())
    assert source.splitlines()[0] == MARKER
    assert re.findall("^## .*", source, re.MULTILINE)[:3] == ["## Summary", "## What ran", "## Steps"]
    tables = rows_of(rendered(source))
    assert [len(set(table)) for table in tables] == [1] * len(tables)
    assert sum(len(table) for table in tables) == sum(line.startswith("|") for line in source.splitlines()) - len(
        tables
    )


def test_hostile_names_stay_text() -> None:
    drawn = rendered(render(samples.hostile()))
    assert not re.search(r"<(script|img|a |h[3-9])", drawn)
    assert drawn.count("<h1>") == 1
    assert "\x1b" not in drawn


def test_long_names_stay_short() -> None:
    assert len(render(samples.hostile("x" * 10_000)).encode()) < 60_000


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=300))
def test_any_name_leaves_the_document_as_it_is(name: str) -> None:
    source, usual = render(samples.hostile(name)), render(samples.hostile("name"))
    headings = re.compile("^#.*", re.MULTILINE)
    assert headings.findall(source)[1:] == headings.findall(usual)[1:]
    assert source.count("- [ ]") == usual.count("- [ ]")


def test_it_has_a_box_and_an_owner_for_every_finding_worth_fixing() -> None:
    report = samples.busy_but_slow()
    report = replace(report, findings=report.findings * 7)
    worth = [finding for finding in report.findings if finding.severity != "info"]
    boxes = re.findall(r"^- \[ \] .*owner: ….*due: …", render(report), re.MULTILINE)
    assert (len(worth), len(boxes)) == (7, 7)


def finding(cause: str) -> Finding:
    return Finding(
        code="x", title="x", wall="memory", cause=cause, severity="warning", confidence="high", lost_ns=1, mfu_points=1
    )


@pytest.mark.parametrize(
    ("per_step", "words"),
    [
        ([10, 10, 9, 11], "in every step, since before step 4"),
        ([0, 1, 10, 12], "from step 6 on"),
        ([0, 0, 0, 12], "from step 7 on"),
        ([12, 10, 1, 0], "up to step 5"),
        ([0, 12, 1, 9], "in steps 5, 7 only"),
        ([0, 12, 1, 0], "in step 5 only"),
        ([5, 6, 10, 10], "in every step, since before step 4"),
        ([4, 6, 10, 10], "from step 5 on"),
        ([], "unknown: the report does not hold its time in each step"),
    ],
)
def test_since_when(per_step: list[int], words: str) -> None:
    steps = [Step(number=number, start_ns=0, duration_ns=1, used=number > 3) for number in range(3, 8)]
    row = replace(samples.row("memory", "layout", 1.0, "modelled"), per_step_ns=per_step)
    report = samples.healthy()
    report = replace(report, ledger=[row], window=replace(report.window, steps=steps))
    assert since(finding("layout"), report) == words


def test_a_rule_that_names_its_steps_tells_since_when() -> None:
    report = samples.healthy()
    steps = [Step(number=number, start_ns=0, duration_ns=1) for number in range(4)]
    report = replace(report, ledger=[], window=replace(report.window, steps=steps))
    outlier = replace(finding("garbage collection"), scope=Scope(steps=[2]))
    assert since(outlier, report) == "in step 2 only"


def test_one_step_and_none_tell_nothing() -> None:
    report = samples.healthy()
    for steps, words in (
        ([], "no steps were found"),
        ([Step(number=1, start_ns=0, duration_ns=1)], "the window holds one step"),
    ):
        assert (
            since(finding("layout"), replace(report, window=replace(report.window, steps=steps))) == f"unknown: {words}"
        )


def test_the_cost_is_points_times_gpus_times_hours() -> None:
    """512 GPUs a day are 12,288 GPU-hours, 30,720 at 2.5; 52 points of MFU leave 48, 5,898 GPU-hours, 14,746 of money."""
    source = render(priced(samples.healthy()))
    assert "| the job | 100.0 | 12,288 | 30,720 |" in source
    assert "| all that is neither MFU nor above | 48.0 | 5,898 | 14,746 |" in source
    # 40 ms x 1,000 x 512 GPUs = 5.69 hours
    assert "- 1,000 steps took 5.69 GPU-hours, 14.22." in source


def test_without_a_price_there_is_no_money() -> None:
    source = render(samples.healthy())
    assert "| the job | 100.0 | 24.00 |" in source
    assert "money" not in source
    assert "--gpu-hour-price says what that costs" in source


@pytest.mark.parametrize(("options", "gpus"), [({"gpus": 8, "world_size": 4}, 8), ({"world_size": 4}, 4), ({}, 20)])
def test_the_gpus_are_those_given_else_those_seen(options: dict[str, int], gpus: int) -> None:
    report = replace(samples.busy_but_slow(), tool=Tool(options=options))
    assert job(report).gpus == gpus


def test_of_very_many_steps_the_slowest_are_listed() -> None:
    report = samples.healthy()
    steps = [Step(number=n, start_ns=n * 50, duration_ns=50 - n % 50) for n in range(1_000)]
    source = render(replace(report, window=replace(report.window, steps=steps)))
    assert "The slowest of 1,000 steps; 960 shorter ones left out." in source
    assert len(source.encode()) < 30_000
