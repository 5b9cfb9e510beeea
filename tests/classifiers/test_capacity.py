"""How full the memory of a simulated GPU got, from what its allocator held."""

from __future__ import annotations

import pytest

from tests.build import launch, launched, trace
from tests.fixes.build import analyses_of
from tests.simulator import MS, US, Run, work
from tests.simulator.kineto import CLOCK_NS
from tests.simulator.programs import MATMUL
from trace_doctor.classifiers.capacity import Recomputed, memory_of, recomputed
from trace_doctor.fixes.case import case_of
from trace_doctor.loaders.linking import link
from trace_doctor.options import Limits, Options
from trace_doctor.report import Memory, MemoryPoint

GB = 10**9
CAPACITY = 85_028_372_480
"""Of the simulator's H100."""


def memory(run: Run, steps: str | None = None) -> Memory | None:
    (analysis,) = analyses_of(run, options=Options(steps=steps))
    return memory_of(analysis)


def test_peaks_of_the_window_and_of_the_file() -> None:
    run = Run()
    run.hold(20 * GB)
    for reserved in (0, 0, 75 * GB):
        run.host(US)
        with run.step():
            run.do(MATMUL)
            run.hold(40 * GB, reserved_bytes=reserved)
            run.do(MATMUL)
            run.hold(-30 * GB)
            run.do(MATMUL)
            run.hold(-10 * GB)
    found = memory(run, steps="1-2")
    assert found
    assert (found.capacity_bytes, found.basis, found.events) == (CAPACITY, "measured", 10)
    # 20 GB stay, 40 come and go, and in the first two steps no more is reserved than that
    assert (found.resident_bytes, found.peak_allocated_bytes, found.peak_reserved_bytes) == (20 * GB, 60 * GB, 60 * GB)
    assert (found.share, found.fragmented_bytes) == (60 * GB / CAPACITY, 0)
    assert found.room_bytes == 76_525_535_232 - 60 * GB
    assert (found.file_peak_allocated_bytes, found.file_peak_reserved_bytes) == (60 * GB, 75 * GB)


def test_what_one_step_holds_at_least_stands_before_its_first_launch_or_after_its_last() -> None:
    run = Run()
    run.hold(20 * GB)
    for _ in range(3):
        run.host(US)
        with run.step():
            run.hold(40 * GB)
            run.do(MATMUL)
            run.do(MATMUL)
            run.hold(-40 * GB)
    found = memory(run, steps="2-2")
    assert found and (found.resident_bytes, found.peak_allocated_bytes) == (20 * GB, 60 * GB)


def test_what_is_reserved_in_no_tensor_is_fragmented() -> None:
    run = Run()
    with run.step():
        run.do(MATMUL)
        run.hold(10 * GB, reserved_bytes=12 * GB)
        run.do(MATMUL)
        run.hold(-5 * GB, reserved_bytes=50 * GB)
        run.do(MATMUL)
    found = memory(run)
    assert found
    assert (found.peak_allocated_bytes, found.fragmented_bytes) == (10 * GB, 2 * GB)
    assert (found.peak_reserved_bytes, found.share) == (50 * GB, 50 * GB / CAPACITY)


def test_the_level_before_the_window_holds_in_it() -> None:
    run = Run()
    run.hold(30 * GB)
    with run.step():
        run.do(MATMUL)
    found = memory(run)
    assert found and (found.peak_allocated_bytes, found.resident_bytes) == (30 * GB, 30 * GB)


def test_allocations_count_where_the_work_was_launched_not_where_it_ran() -> None:
    run = Run()
    for gigabytes in (1, 2, 3):  # the host is done with all steps while the GPU is at the first
        with run.step():
            run.hold(gigabytes * GB)
            run.do(work.mm(16384, 16384, 16384))
            run.hold(-gigabytes * GB)
    assert run.now_ns < run.ran[0].end_ns
    found = memory(run, steps="2-3")
    assert found and found.peak_allocated_bytes == 3 * GB
    found = memory(run, steps="2-2")
    assert found and found.peak_allocated_bytes == 2 * GB


def test_a_short_timeline_is_whole() -> None:
    run = Run()
    with run.step():
        run.hold(2 * GB)
        run.do(MATMUL)
        at_ns = run.now_ns
        run.hold(-GB)
    found = memory(run)
    assert found and found.timeline == [
        MemoryPoint(at_ns=CLOCK_NS + 10 * MS, allocated_bytes=2 * GB, reserved_bytes=2 * GB),
        MemoryPoint(at_ns=CLOCK_NS + at_ns, allocated_bytes=GB, reserved_bytes=2 * GB),
    ]


def test_a_long_timeline_keeps_the_highest_of_each_group() -> None:
    run = Run()
    with run.step():
        run.do(MATMUL)
        for number in range(500):  # 2 or 3 neighbours a group: up to the group's number, and down to 0
            run.hold(number + 1)
            run.host(US)
            run.hold(-number - 1)
            run.host(US)
        run.do(MATMUL)
    found = memory(run)
    assert found and found.events == 1000
    assert [point.allocated_bytes for point in found.timeline] == [
        max(level + 1 for level in range(500) if 5 * group <= 2 * level < 5 * group + 5) for group in range(200)
    ]


def test_calls_for_memory_of_the_device() -> None:
    run = Run()
    with run.step():
        run.do(MATMUL)
        with run.range("aten::empty"):
            run.call("cudaMalloc")  # fails
            run.call("cudaFree")
            run.call("cudaFree")
            run.call("cudaMalloc")
        run.call("cudaHostAlloc")  # pins memory of the host
        run.call("cudaFree")  # torch.cuda.empty_cache()
        with run.range("aten::empty"):
            run.call("cudaMalloc")
        run.do(MATMUL)
    found = memory(run)
    assert found == Memory(capacity_bytes=CAPACITY, mallocs=3, frees=3, retries=1)


def test_retries_are_unknown_without_host_ops() -> None:
    built = trace(
        launched(10, 80, at_ns=1, correlation=1),
        launch(20, 1, "cudaFree", kind="free"),
        launch(21, 1, "cudaMalloc", kind="malloc"),
        launched(95, 80, at_ns=30, correlation=2),
    )
    (analysis,) = analyses_of(link(built))
    assert memory_of(analysis) == Memory(mallocs=1, frees=1, retries=None)


def test_without_events_and_calls_nothing_is_said() -> None:
    run = Run()
    with run.step():
        run.do(MATMUL)
    assert memory(run) is None


def checkpointed(run: Run, layers: int) -> None:
    """Each layer keeps 1 GB of its forward pass, and 2 more of the 3 that computing it again takes, until it is through."""
    for _ in range(layers):
        run.do(MATMUL)
        run.hold(GB)
    for _ in range(layers):
        with run.backward("CheckpointFunctionBackward"):
            with run.range("aten::linear"):
                run.hold(3 * GB)
                run.do(MATMUL, recompute=True)
                run.do(MATMUL, recompute=True)
                run.hold(-GB)
            run.host(US)
            with run.backward("MmBackward0"):
                run.hold(5 * GB)
                run.do(MATMUL)
                run.hold(-5 * GB)
        run.hold(-3 * GB)


@pytest.mark.parametrize("layers", [1, 4])
def test_what_recomputation_saves_is_what_tensors_gain_while_it_runs(layers: int) -> None:
    run = Run()
    for _ in range(2):
        with run.step():
            checkpointed(run, layers)
    (analysis,) = analyses_of(run)
    kernels = case_of(analysis, Limits()).kernels
    assert recomputed(analysis, kernels, steps=2) == Recomputed(saved_bytes=2.0 * GB * layers, regions=layers)


def test_what_recomputation_saves_is_unknown_without_memory_events() -> None:
    run = Run()
    with run.step(), run.backward("CheckpointFunctionBackward"):
        run.do(MATMUL, recompute=True)
    (analysis,) = analyses_of(run)
    assert recomputed(analysis, case_of(analysis, Limits()).kernels, steps=1) is None
