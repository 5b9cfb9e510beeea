from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.reporter import golden, samples
from trace_doctor.report import Report
from trace_doctor.reporter import text
from trace_doctor.reporter.terminal import render
from trace_doctor.reporter.view import view

REPORTS = {
    "healthy": samples.healthy,
    "poor": samples.poor,
    "busy_but_slow": samples.busy_but_slow,
    "hostile": samples.hostile,
}


@pytest.mark.parametrize("name", REPORTS)
def test_golden(name: str) -> None:
    golden.hold(f"{name}.txt", render(REPORTS[name]()))


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    assert [line for line in render(REPORTS[name](), width=width).splitlines() if cell_len(line) > width] == []


@pytest.mark.parametrize("name", REPORTS)
def test_ascii_has_the_same_lines_in_ascii(name: str) -> None:
    plain, ascii_only = render(REPORTS[name]()), render(REPORTS[name](), ascii_only=True)
    assert ascii_only.isascii()
    assert [cell_len(line) for line in ascii_only.splitlines()] == [cell_len(line) for line in plain.splitlines()]


@pytest.mark.parametrize("colour", ["standard", "256", "truecolor"])
def test_colour_changes_nothing_but_colour(colour: str) -> None:
    coloured = render(samples.busy_but_slow(), colour=colour)
    assert "\x1b[" in coloured
    assert golden.without_colour(coloured) == render(samples.busy_but_slow())


@settings(max_examples=30)
@given(st.text(alphabet=st.characters(), max_size=200))
def test_nothing_of_a_name_steers_the_terminal(name: str) -> None:
    drawn = render(samples.hostile(name))
    assert set(drawn) & {"\x1b", "\r", "\x07", "\x9b", "\u202e"} == set()


def test_markup_in_names_is_shown_as_it_stands() -> None:
    assert "[bold]markup[/]" in render(samples.hostile())


def test_nothing_worth_fixing_is_an_answer() -> None:
    assert "Nothing worth fixing" in render(samples.healthy())
    assert "Nothing worth fixing" not in render(samples.busy_but_slow())


def test_without_trust_nothing_worth_fixing_is_not_claimed() -> None:
    assert "Nothing that this trace proves is worth fixing" in render(samples.poor())


def test_sections_stand_in_their_order() -> None:
    drawn = render(samples.busy_but_slow())
    titles = ["MFU 17.3 %", "Where the time goes", "Findings", "Numbers", "Ledger", "Left out"]
    places = [drawn.index(f"\n{title}") for title in titles]
    assert places == sorted(places)


def test_a_snippet_is_never_cut() -> None:
    drawn = render(samples.busy_but_slow(), width=60)
    words = "torch.distributed.init_process_group(backend='nccl', device_id=device) # without it the first one is slow"
    assert words in " ".join(drawn.split())


def test_a_slow_step_is_explained_against_the_median_step() -> None:
    assert (
        "Step 3 took 51.0 ms, 1.46 × the median step 2 (35.0 ms): 14.0 ms more host wall: garbage collection (Python GC of"
        " generation 2), 2.50 ms more communication wall: waiting or slow (ncclDevKernel_AllReduce_Sum_bf16_RING_LL) and"
        " 500 µs less memory wall: layout."
    ) in " ".join(render(samples.busy_but_slow()).split())


def test_an_empty_report_is_drawn() -> None:
    assert "MFU unknown" in render(Report())


def test_the_waterfall_falls_from_the_peak_to_mfu() -> None:
    bars = view(samples.busy_but_slow()).bars
    assert [bar.label for bar in bars] == [
        "peak", "recompute", "compute", "memory wall", "communication wall", "small kernels", "host wall", "unattributed", "MFU",
    ]  # fmt: skip
    assert sum(bar.points for bar in bars[1:]) == pytest.approx(100)
    assert [bar.high for bar in bars[2:]] == pytest.approx([bar.low for bar in bars[1:-1]])
    assert (bars[-1].low, bars[-1].high) == (pytest.approx(0), pytest.approx(17.3))


def test_without_mfu_tensor_work_of_unknown_flops_stands_at_the_foot() -> None:
    bars = view(samples.poor()).bars
    assert [(bar.label, round(bar.points, 6)) for bar in bars[-2:]] == [
        ("unattributed", 40.0),
        ("tensor kernels", 35.0),
    ]


def test_contributors_of_several_gpus_are_means_as_their_row_is() -> None:
    causes = {cause.title: cause for cause in view(samples.busy_but_slow()).causes}
    all_reduce = causes["communication wall: waiting or slow"]
    assert (all_reduce.points, all_reduce.time_ns) == (18.0, pytest.approx(7_200_000))
    assert (all_reduce.top[0].points, all_reduce.top[0].time_ns) == (18.0, pytest.approx(7_200_000))
    assert all_reduce.top[0].times == "8"


def test_more_gpus_than_fit_are_folded() -> None:
    shown = view(samples.busy_but_slow())
    assert (len(shown.gpus), text.plain(shown.more_gpus or "")) == (
        16,
        "4 more GPUs, 35.2 ms to 35.2 ms, MFU 17.3 % to 17.4 %",
    )
