"""The window and its steps: ATTRIBUTION section 2."""

from __future__ import annotations

from itertools import count, pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import Row, kernel, launch, launched, mark, step, trace
from trace_doctor.errors import UsageError
from trace_doctor.loaders import kineto, steps
from trace_doctor.loaders.linking import link
from trace_doctor.options import Options
from trace_doctor.trace import Trace, Window
from trace_doctor.work import kernels


def window(*rows: Row | list[Row], options: Options | None = None, **more: Any) -> Window:
    return steps.find(link(trace(*rows, **more)), options or Options())


def spans(found: Window) -> list[tuple[int | None, int, int]]:
    return found.spans.select("number", "start_ns", "end_ns").rows()


def codes(found: Window) -> list[str]:
    return [warning.code for warning in found.warnings]


def loop(*durations: int, first: int = 1, **more: Any) -> list[Row]:
    """Steps of these lengths, one after the other from 0, each with a kernel launched at its start that fills its half."""
    rows, start = [], 0
    for number, duration in enumerate(durations, first):
        rows.append(step(number, start, start + duration, **more))
        rows += launched(start + 1, duration // 2, at_ns=start, correlation=number)
        start += duration
    return rows


# borders


def test_a_starved_gpu_has_its_borders_at_the_marks() -> None:
    assert spans(window(loop(100, 100, first=3))) == [(3, 0, 100), (4, 100, 200)]


def test_a_gpu_that_lags_has_its_borders_where_earlier_work_ends() -> None:
    found = window(
        step(1, 0, 100),
        step(2, 100, 200),
        launched(10, 150, at_ns=5, correlation=1),
        launched(160, 200, at_ns=110, correlation=2),
    )
    assert spans(found) == [(1, 0, 160), (2, 160, 360)]


def test_the_first_border_waits_for_what_was_launched_before_the_marks() -> None:
    found = window(
        launched(50, 80, at_ns=10, correlation=9), step(1, 100, 200), launched(130, 20, at_ns=110, correlation=1)
    )
    assert spans(found) == [(1, 130, 200)]


@pytest.mark.parametrize("kind", ["copy", "set", "communication"])
def test_only_compute_moves_a_border(kind: str) -> None:
    left_over = launched(10, 300, at_ns=5, correlation=1, stream=20, kind=kind)
    assert spans(window(step(1, 0, 100), step(2, 100, 200), left_over, loop(100, 100)))[0] == (1, 0, 100)


def test_borders_never_go_back() -> None:
    """What was launched before the first mark on another stream ends after the second mark."""
    found = window(loop(100, 100), launched(-10, 160, at_ns=-20, correlation=9, stream=8))
    assert spans(found) == [(1, 150, 150), (2, 150, 200)]


def test_the_last_step_ends_with_the_compute_that_it_launched() -> None:
    found = window(
        step(1, 0, 100), launched(50, 200, at_ns=99, correlation=1), launched(300, 50, at_ns=100, correlation=2)
    )
    assert spans(found) == [(1, 0, 250)]


def test_after_a_cold_start_a_trailing_collective_is_seen() -> None:
    trailing = launched(60, 100, at_ns=50, correlation=2, name="ncclDevKernel_AllReduce", stream=20)
    assert spans(window(loop(100), trailing)) == [(1, 0, 160)]


def test_else_a_trailing_collective_is_left_to_the_next_step_as_the_one_before_was() -> None:
    before = launched(-10, 30, at_ns=-20, correlation=3, name="ncclDevKernel_AllReduce", stream=20)
    trailing = launched(60, 100, at_ns=50, correlation=2, name="ncclDevKernel_AllReduce", stream=20)
    assert spans(window(loop(100), before, trailing)) == [(1, 0, 100)]


# activities without launch record


def launch_times(*rows: Row | list[Row]) -> list[int]:
    return steps.launch_times(link(trace(*rows)))["launched_ns"].to_list()


def test_an_unlinked_activity_is_launched_with_the_linked_one_before_it_on_its_stream() -> None:
    assert launch_times(
        kernel(10, 5),
        launched(20, 5, at_ns=3, correlation=1),
        kernel(30, 5),
        kernel(40, 5, stream=8),
        launched(50, 5, at_ns=4, correlation=2, stream=8),
    ) == [steps.BEFORE_ALL_NS, 3, 3, steps.BEFORE_ALL_NS, 4]


def test_on_a_stream_without_any_linked_one_it_is_launched_at_its_own_start() -> None:
    assert launch_times(launched(20, 5, at_ns=3, correlation=1), kernel(30, 5, stream=8)) == [3, 30]


def test_a_linked_copy_on_another_stream_does_not_take_unlinked_kernels_into_the_step() -> None:
    """Trap 1 of real traces: graph kernels of the step before run unlinked, while a side stream's copy is launched."""
    found = window(
        *(kernel(-50 + 10 * number, 10) for number in range(10)),
        step(1, 0, 100),
        step(2, 100, 200),
        launched(2, 5, at_ns=1, correlation=1, stream=20, kind="copy"),
        launched(60, 40, at_ns=10, correlation=2),
        launched(120, 40, at_ns=110, correlation=3),
    )
    assert spans(found) == [(1, 50, 100), (2, 100, 200)]


# which ranges are steps


def test_profiler_steps_come_before_other_annotations() -> None:
    found = window(loop(100, 100, first=5), mark(0, 50, "iteration 1"), mark(50, 50, "iteration 2"))
    assert (found.rule, [row[0] for row in spans(found)]) == ("ProfilerStep#N annotations", [5, 6])


def named(*names: str) -> list[Row]:
    """Ranges of 100 ns of these names, with a kernel in each."""
    rows = []
    for number, name in enumerate(names):
        rows.append(mark(100 * number, 100, name))
        rows += launched(100 * number + 20, 50, at_ns=100 * number + 10, correlation=number + 1)
    return rows


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["iteration 7", "iteration 8"], [7, 8]),
        (["train_step", "train_step", "train_step"], [1, 2, 3]),
        (["## batch ##", "## batch ##"], [1, 2]),
        (["epoch 0 iter 3", "epoch 0 iter 4"], [3, 4]),
        (["epoch 0 iter 9", "epoch 1 iter 0"], [1, 2]),
        (["runTrainingStep", "runTrainingStep"], [1, 2]),
        (["step[DECODE bs=4]", "step[DECODE bs=4]"], [1, 2]),
    ],
)
def test_a_repeating_annotation_that_says_step(names: list[str], numbers: list[int]) -> None:
    found = window(named(*names))
    assert spans(found) == [(number, 100 * i, 100 * (i + 1)) for i, number in enumerate(numbers)]
    assert "repeating annotation" in found.rule


@pytest.mark.parametrize(
    "names",
    [
        ["iteration 1"],
        ["Optimizer.step#SGD.step", "Optimizer.step#SGD.step"],
        ["enumerate(DataLoader)#batch", "enumerate(DataLoader)#batch"],
        ["forward", "forward"],
        ["stepsize", "stepsize"],
        ["cub::DeviceReduce", "cub::DeviceReduce"],
    ],
)
def test_annotations_that_are_no_steps(names: list[str]) -> None:
    found = window(named(*names))
    assert (len(found.steps), "no step marks" in found.rule) == (0, True)
    assert spans(found) == [(None, 20, 100 * (len(names) - 1) + 70)]
    assert "no step marks" in found.warnings[0].message


def test_a_range_that_only_loads_a_batch_is_no_step() -> None:
    loads = [mark(100 * number, 5, f"load_batch {number}") for number in range(2)]
    kernels_ = [launched(100 * number + 20, 50, at_ns=100 * number + 10, correlation=number + 1) for number in range(2)]
    assert len(window(*loads, *kernels_).steps) == 0


def test_of_nested_step_ranges_the_outer_ones_are_steps() -> None:
    outer = [mark(200 * number, 200, f"step {number}") for number in range(2)]
    assert spans(window(named(*(f"micro_batch {number}" for number in range(4))), *outer)) == [
        (0, 0, 200),
        (1, 200, 400),
    ]


def test_the_user_names_the_range() -> None:
    rows = named("fwd 1", "fwd 2", "bwd 3")
    prefix, regex = (window(rows, options=Options(step_range=text)) for text in ("fwd", r"[fb]wd \d"))
    assert spans(prefix) == [(1, 0, 100), (2, 100, 200)]
    assert [row[0] for row in spans(regex)] == [1, 2, 3]
    assert spans(window(named("a[1", "a[2"), options=Options(step_range="a["))) == [(1, 0, 100), (2, 100, 200)]


def test_a_range_that_is_not_there_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="no annotation begins with or matches 'fwdd'") as caught:
        window(named("fwd 1", "fwd 2", "bwd 3"), options=Options(step_range="fwdd"))
    assert caught.value.hint == "take one of: fwd N, bwd N"


def test_the_whole_trace_has_no_steps() -> None:
    found = window(loop(100, 100), options=Options(whole_trace=True))
    assert (len(found.steps), spans(found), codes(found)) == (0, [(None, 1, 151)], ["no-steps"])


# which steps are used


def test_a_slow_first_step_is_left_out_of_three() -> None:
    found = window(loop(200, 100, 100))
    assert [row[0] for row in spans(found)] == [2, 3]
    assert found.steps["why_not"].to_list() == ["first step, 2.0 x the median: warm-up", None, None]


@pytest.mark.parametrize("durations", [(125, 100, 100), (200, 100), (100, 100, 300)])
def test_no_step_is_left_out(durations: tuple[int, ...]) -> None:
    assert window(loop(*durations)).steps["used"].all()


def test_all_steps_may_be_kept() -> None:
    assert window(loop(200, 100, 100), options=Options(all_steps=True)).steps["used"].all()


def test_a_step_that_launched_nothing_is_not_used() -> None:
    found = window(loop(100, 100), step(3, 200, 300), options=Options(all_steps=True))
    assert found.steps["why_not"].to_list() == [None, None, "launched nothing on this GPU"]


def test_a_step_before_the_first_work_is_not_the_first_recorded_one() -> None:
    found = window(step(0, -100, 0), loop(300, 100, 100))
    assert found.steps["used"].to_list() == [False, False, True, True]


@pytest.mark.parametrize(("text", "numbers"), [("4-5", [4, 5]), ("3,5", [3, 5]), (" 6 , 3 - 4", [3, 4, 6]), ("3", [3])])
def test_steps_may_be_chosen(text: str, numbers: list[int]) -> None:
    found = window(loop(900, 100, 100, 100, first=3), options=Options(steps=text))
    assert [row[0] for row in spans(found)] == numbers
    assert found.steps.filter(~pl.col("used"))["why_not"].unique().to_list() in ([f"not among --steps {text}"], [])


@pytest.mark.parametrize(
    ("text", "said"), [("7", "7"), ("7-7", "7"), ("1-4", "1"), ("3-9", "9"), ("1-9", "1, 9"), ("5-4", "5-4")]
)
def test_unknown_steps_are_an_error_that_names_those_there_are(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        window(loop(100, 100, 100, first=3), options=Options(steps=text))
    assert caught.value.what == f"the trace has no step {said}"
    assert caught.value.hint == "take from: 3, 4, 5"


@pytest.mark.parametrize("text", ["", "two", "2-", "-2", "2;3", "1" * 5000])
def test_what_names_no_steps_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="is no step number and no range of them"):
        window(loop(100, 100), options=Options(steps=text))


def test_a_trace_without_steps_has_none_to_choose() -> None:
    with pytest.raises(UsageError, match="no steps to choose from"):
        window(kernel(0, 5), options=Options(steps="1"))


# several devices


def test_devices_of_one_process_share_marks_and_choice() -> None:
    """Device 1 alone would keep the first step."""
    other = [launched(start + 1, 10, at_ns=start, correlation=10 + start, device=1) for start in (0, 300, 400)]
    found = window(loop(300, 100, 100), *other)
    assert found.spans.select("device", "number").rows() == [(0, 2), (0, 3), (1, 2), (1, 3)]


def test_a_device_that_did_nothing_in_a_step_does_not_use_it() -> None:
    other = launched(10, 10, at_ns=5, correlation=9, device=1)
    found = window(loop(100, 100), other)
    assert found.spans.select("device", "number").rows() == [(0, 1), (0, 2), (1, 1)]


def test_every_process_has_its_own_marks() -> None:
    second: list[Row | list[Row]] = [
        step(7, 50, 90, thread=1),
        launched(60, 10, at_ns=55, correlation=1, thread=1, device=1, process=1),
    ]
    found = window(loop(100), *second, threads=(0, 1))
    assert found.spans.select("device", "number", "start_ns", "end_ns").rows() == [(0, 1, 0, 100), (1, 7, 50, 90)]


def test_a_process_without_marks_takes_those_of_another() -> None:
    second = launched(60, 10, at_ns=55, correlation=1, thread=1, device=1, process=1)
    found = window(loop(100), second, threads=(0, 1))
    assert found.spans.select("device", "number").rows() == [(0, 1), (1, 1)]


def test_marks_on_two_threads_count_once() -> None:
    assert len(window(loop(100, 100), step(1, 0, 90, thread=1), threads=2).steps) == 2


# what is warned of


def test_one_step_only() -> None:
    assert codes(window(loop(100))) == ["one-step"]


def test_a_lag_that_drifts() -> None:
    """Kernels of 150 in steps of 100: the GPU falls behind by 50 a step."""
    rows = [step(number, 100 * number, 100 * number + 100) for number in range(3)]
    rows += [r for n in range(3) for r in launched(150 * n + 1, 150, at_ns=100 * n, correlation=n + 1)]
    found = window(rows)
    assert codes(found) == ["lag-drift"]
    assert spans(found) == [(0, 0, 151), (1, 151, 301), (2, 301, 451)]


def test_a_lag_that_hardly_drifts() -> None:
    """Kernels of 110 in steps of 100: the host gets ahead, as it does after every start."""
    rows = [step(number, 100 * number, 100 * number + 100) for number in range(3)]
    rows += [r for n in range(3) for r in launched(110 * n + 1, 110, at_ns=100 * n, correlation=n + 1)]
    assert codes(window(rows)) == []


def test_a_steady_lag_is_no_drift() -> None:
    rows = [step(number, 100 * number, 100 * number + 100) for number in range(3)]
    rows += [r for n in range(-1, 3) for r in launched(100 * n + 51, 100, at_ns=100 * n, correlation=n + 5)]
    assert codes(window(rows)) == []


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 200), st.integers(0, 60), st.integers(7, 8)), max_size=20)
)
def test_spans_are_disjoint_and_in_order_and_no_step_is_lost(work: list[tuple[int, int, int, int]]) -> None:
    """Whatever was launched when, and with or without record."""
    ids = count(1)
    rows = [step(number, 100 * number, 100 * number + 90) for number in range(3)]
    for at, delay, length, stream in work:
        number = next(ids)
        rows.append(kernel(at + delay, length, correlation=number, stream=stream))
        rows += [launch(at, 1, correlation=number)] if length % 3 else []
    found = window(rows or [kernel(0, 1)], kernel(0, 1))
    edges = found.spans.select("start_ns", "end_ns").rows()
    assert all(start <= end for start, end in edges)
    assert all(before[1] <= after[0] for before, after in pairwise(edges))
    assert len(found.steps) in (0, 3)
    assert len(found.spans) == max(1, found.steps["used"].sum())


# real traces: the windows that an independent prototype of the same rules gave


@pytest.mark.parametrize(
    ("name", "window_ms", "count_"),
    [
        ("qwen-0.5b-infer-H100.json.gz", 35.2, 1),
        ("resnet-checkpoint-8xMI300-rank0.json.gz", 56.5, 3),
        ("ddp-cudagraph-A100.json.gz", 1077.1, 5),
        ("hta-test-V100.json.gz", 706.0, 6),
        ("tutorial-H100.json", 1.7, 2),
        ("megatron-tp8-A100/rank1.json.gz", 623.3, 1),
    ],
)
def test_real_windows(name: str, window_ms: float, count_: int, shared: Path) -> None:
    traced: Trace = kernels.classify(link(kineto.load(shared / "traces" / "pytorch" / name, jobs=1)))
    found = steps.find(traced, Options())
    length = found.spans.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    assert (round(length / 1e6, 1), len(found.spans), found.trust) == (window_ms, count_, "good")
