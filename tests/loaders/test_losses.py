"""Launches whose kernels were not recorded."""

from __future__ import annotations

import pytest

from tests.build import Row, kernel, launch, launched, step, trace
from trace_doctor.loaders import steps
from trace_doctor.loaders.linking import link
from trace_doctor.options import Options
from trace_doctor.trace import Window


def window(*rows: Row | list[Row]) -> Window:
    return steps.find(link(trace(*rows)), Options())


def recorded(count: int, *, start: int = 0) -> list[Row]:
    """Kernels with their launches, one a nanosecond from `start`."""
    return [row for n in range(start, start + count) for row in launched(n + 1, 1, at_ns=n, correlation=n + 1)]


def lost(count: int, *, start: int = 0, name: str = "cudaLaunchKernel") -> list[Row]:
    """Launches without kernel."""
    return [launch(start + n, 1, name, correlation=100_000 + start + n) for n in range(count)]


@pytest.mark.parametrize(
    ("missing", "trust"), [(0, "good"), (1, "good"), (2, "partial"), (37, "partial"), (38, "poor")]
)
def test_trust_falls_with_the_share_of_lost_launches(missing: int, trust: str) -> None:
    assert window(step(1, 0, 500), recorded(150), lost(missing)).trust == trust


def test_the_reason_names_the_step_and_counts() -> None:
    found = window(step(3, 0, 100), step(4, 100, 200), recorded(5), recorded(5, start=100), lost(15, start=100))
    assert found.trust == "poor"
    assert found.why == (
        "15 of 20 launches in step 4 left no kernel in the file: the GPU worked there where it seems idle",
    )
    assert [warning.code for warning in found.warnings] == ["kernels-lost"]


def test_a_step_whose_kernels_were_all_lost_is_named_and_not_used() -> None:
    """pytorch/pytorch#192021: the first steps of a session lose their kernels."""
    found = window(step(1, 0, 100), step(2, 100, 200), lost(8), recorded(5, start=100))
    assert found.steps["why_not"].to_list() == ["its 8 launches left no kernel in the file", None]
    assert found.trust == "partial"


def test_graph_launches_count_apart_because_each_stands_for_many_kernels() -> None:
    """AMD-AGI/Hyperloom#1047: one of many replays was recorded."""
    found = window(step(1, 0, 2000), recorded(1000), lost(3, name="hipGraphLaunch"))
    assert found.trust == "poor"


def test_a_graph_launch_is_recorded_once_one_of_its_nodes_is() -> None:
    graph = launch(5, 1, "cudaGraphLaunch", correlation=77)
    kernels = [kernel(10 + n, 1, correlation=77) for n in range(2)]
    assert window(step(1, 0, 100), graph, *kernels).trust == "good"


@pytest.mark.parametrize("name", ["cudaMemsetAsync", "cudaMemcpyAsync", "cudaEventRecord"])
def test_calls_that_may_leave_nothing(name: str) -> None:
    """Sets and copies of zero bytes have no activity."""
    assert window(step(1, 0, 100), recorded(5), lost(20, name=name)).trust == "good"


def test_launches_while_a_graph_is_captured_run_at_replay() -> None:
    capture = [launch(10, 1, "cudaStreamBeginCapture_v10000"), launch(60, 1, "cudaStreamEndCapture_v10000")]
    assert window(step(1, 0, 100), recorded(5), capture, lost(40, start=15)).trust == "good"
    assert window(step(1, 0, 100), recorded(5), capture, lost(40, start=61)).trust == "poor"


def test_launches_outside_the_steps_do_not_count() -> None:
    assert window(step(1, 0, 100), recorded(5), lost(20, start=200)).trust == "good"


def test_without_steps_what_lies_between_recorded_launches_counts() -> None:
    rows = [recorded(5), recorded(5, start=100)]
    assert window(*rows, lost(20, start=200)).trust == "good"
    assert window(*rows, lost(20, start=50)).trust == "poor"
