"""Without steps, the broadcast of the parameters at start-up is no part of the window."""

from __future__ import annotations

from tests.build import Row, kernel, trace
from trace_doctor.loaders import steps
from trace_doctor.options import Options
from trace_doctor.trace import Trace
from trace_doctor.work import kernels

BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
START_UP = [kernel(10, 5, "fill_kernel"), kernel(20, 100, BROADCAST), kernel(130, 10, BROADCAST)]


def window(*rows: Row | list[Row], whole: bool = False) -> tuple[str, list[tuple[int, int, int]]]:
    built: Trace = kernels.classify(trace(*rows))
    found = steps.find(built, Options(whole_trace=whole))
    return found.rule, found.spans.select("device", "start_ns", "end_ns").rows()


def test_the_window_begins_after_the_broadcast() -> None:
    rule, spans = window(START_UP, kernel(150, 10), kernel(170, 30))
    assert spans == [(0, 140, 200)]
    assert "broadcast (2 collectives)" in rule


def test_the_whole_trace_holds_it() -> None:
    assert window(START_UP, kernel(150, 50), whole=True)[1] == [(0, 10, 200)]


def test_buffers_broadcast_in_each_step_are_no_start_up() -> None:
    assert window(START_UP, kernel(150, 50), kernel(210, 5, BROADCAST))[1] == [(0, 10, 215)]


def test_one_broadcast_may_belong_to_the_first_step() -> None:
    assert window(START_UP[:2], kernel(150, 50))[1] == [(0, 10, 200)]


def test_every_device_must_show_it() -> None:
    assert window(START_UP, kernel(150, 50), kernel(30, 100, device=1))[1] == [(0, 10, 200), (1, 30, 130)]
