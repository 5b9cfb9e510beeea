"""Gaps by hand: each row of ATTRIBUTION section 5."""

from __future__ import annotations

import polars as pl
import pytest

from tests.build import Row, kernel, launch, mark, op, trace
from trace_doctor.classifiers.host import explain_gaps, named_causes
from trace_doctor.loaders.linking import link
from trace_doctor.options import Thresholds

US = 1_000
Causes = dict[str, int]


def call(
    start_us: int, duration_us: int, correlation: int | None = None, name: str = "cudaLaunchKernel", thread: int = 0
) -> Row:
    return launch(start_us * US, duration_us * US, name, correlation=correlation, thread=thread)


def busy(start_us: int, end_us: int, correlation: int | None = None, name: str = "gemm", kind: str = "compute") -> Row:
    return kernel(start_us * US, (end_us - start_us) * US, name, correlation=correlation, kind=kind)


def causes(*rows: Row, gaps: list[tuple[int, int]], threads: int = 1) -> Causes:
    """Microseconds by cause; the segments must fill the gaps exactly."""
    linked = link(trace(*rows, threads=threads))
    activities = linked.activities.with_columns(op_name=linked.ops["name"].gather(linked.activities["op"]))
    pieces = activities.with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    frame = pl.DataFrame(
        [(a * US, b * US) for a, b in gaps], schema={"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row"
    )
    found = explain_gaps(frame, linked, activities, pieces, thresholds=Thresholds())
    assert (found["end_ns"] - found["start_ns"]).sum() == sum(b - a for a, b in gaps) * US
    sums = found.group_by("cause").agg((pl.col("end_ns") - pl.col("start_ns")).sum() // US).sort("cause")
    return dict(sums.iter_rows())


def test_a_late_launch() -> None:
    # K's call runs 150-156 us and K starts at 160: 50 us of host code, then the call and its latency
    rows = [busy(0, 100, 1), busy(160, 200, 2), call(0, 1, 1), call(150, 6, 2)]
    assert causes(*rows, gaps=[(100, 160)]) == {"launch-bound": 60}


def test_launches_far_apart_are_host_code() -> None:
    rows = [busy(0, 100, 1), busy(310, 400, 2), call(0, 1, 1), call(300, 5, 2)]
    assert causes(*rows, gaps=[(100, 310)]) == {"host code": 200, "launch-bound": 10}


def test_a_blocked_launch_call() -> None:
    # the call runs 110-400 us: 50 us are launching, the rest was blocked
    rows = [busy(0, 100, 1), busy(400, 500, 2), call(0, 1, 1), call(110, 290, 2)]
    assert causes(*rows, gaps=[(100, 400)]) == {"launch-bound": 10 + 50, "launch call blocked": 240}


def test_a_kernel_launched_long_before() -> None:
    rows = [busy(0, 100, 1), busy(105, 200, 2), busy(260, 300, 3), call(0, 1, 1), call(2, 1, 2), call(4, 1, 3)]
    assert causes(*rows, gaps=[(100, 105), (200, 260)]) == {"device-side gap": 5 + 20, "queued but not started": 40}


def test_a_kernel_without_launch_record_counts_as_launched_before() -> None:
    rows = [busy(0, 100, 1), busy(110, 200), call(0, 1, 1)]
    assert causes(*rows, gaps=[(100, 110)]) == {"device-side gap": 10}


def test_a_running_graph_counts_as_launched() -> None:
    graph = call(0, 300, 1, "cudaGraphLaunch")
    assert causes(busy(10, 100, 1), busy(110, 200, 1), graph, gaps=[(100, 110)]) == {"device-side gap": 10}


def test_a_wait_is_a_debt_that_later_gaps_pay() -> None:
    # the host waits 10-100 us while the GPU is busy (90 us of debt), then launches at 400: 90 are paid, the rest is host code
    rows = [
        busy(5, 100, 1),
        busy(410, 500, 2),
        call(0, 1, 1),
        call(10, 95, name="cudaStreamSynchronize"),
        call(400, 5, 2),
    ]
    assert causes(*rows, gaps=[(100, 410)]) == {"synchronisation": 90, "host code": 210, "launch-bound": 10}


def test_a_wait_on_a_busy_gpu_costs_nothing_where_no_gap_follows() -> None:
    rows = [
        busy(5, 100, 1),
        busy(100, 200, 2),
        call(0, 1, 1),
        call(2, 90, name="cudaDeviceSynchronize"),
        call(95, 2, 2),
    ]
    assert causes(*rows, gaps=[]) == {}


def test_a_blocking_copy_is_a_wait() -> None:
    rows = [
        busy(5, 100, 1),
        busy(100, 102, 2, "Memcpy DtoH (Device -> Pageable)", "copy"),
        busy(310, 400, 3),
        call(0, 1, 1),
        call(10, 95, 2, "cudaMemcpyAsync"),
        call(300, 5, 3),
    ]
    # it waited 10-102 us while the GPU was busy: 92 us; launches 290 us apart are no launch-bound stretch
    assert causes(*rows, gaps=[(102, 310)]) == {"synchronisation": 92, "host code": 106, "launch-bound": 10}


@pytest.mark.parametrize(
    ("doing", "cause"),
    [
        (mark(120 * US, 100 * US, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), "input pipeline"),
        (op(120 * US, 100 * US, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"), "input pipeline"),
        (call(120, 100, name="cudaMalloc"), "allocator"),
        (mark(120 * US, 100 * US, "Buffer Flush", kind="overhead", thread=1), "profiler overhead"),
        (mark(120 * US, 100 * US, "save_checkpoint"), "checkpoint saving"),
        (mark(120 * US, 100 * US, "evaluate"), "evaluation"),
        (mark(120 * US, 100 * US, "gc.collect"), "garbage collection"),
        (mark(120 * US, 100 * US, "log_metrics"), "logging"),
        (mark(120 * US, 100 * US, "compile_fx"), "compilation"),
        (op(120 * US, 100 * US, "compile_attempt_0"), "compilation"),
    ],
)
def test_a_named_cause_wins_while_it_lasts(doing: Row, cause: str) -> None:
    rows = [busy(0, 100, 1), busy(310, 400, 2), call(0, 1, 1), call(300, 5, 2), doing]
    assert causes(*rows, gaps=[(100, 310)], threads=2) == {cause: 100, "host code": 100, "launch-bound": 10}


def test_calls_before_the_first_launch_are_initialisation() -> None:
    rows = [busy(0, 10, 1), busy(310, 400, 2), call(50, 5, 1), call(300, 5, 2), call(20, 20, name="cudaMalloc")]
    assert causes(*rows, gaps=[(10, 310)])["initialisation"] == 20


def test_overhead_in_another_process_that_works_is_its_own() -> None:
    rows = [
        *(busy(0, 100, 1), busy(310, 400, 2), call(0, 1, 1), call(300, 5, 2)),
        call(50, 5, 3, thread=1),
        mark(120 * US, 100 * US, "Buffer Flush", kind="overhead", thread=1),
    ]
    assert causes(*rows, gaps=[(100, 310)], threads=(0, 1)) == {"host code": 200, "launch-bound": 10}


def test_another_threads_ranges_say_nothing() -> None:
    rows = [
        busy(0, 100, 1),
        busy(310, 400, 2),
        call(0, 1, 1),
        call(300, 5, 2),
        mark(120 * US, 100 * US, "evaluate", thread=1),
    ]
    assert causes(*rows, gaps=[(100, 310)], threads=2) == {"host code": 200, "launch-bound": 10}


def test_a_trace_without_launches_explains_no_tail() -> None:
    assert causes(busy(0, 100), gaps=[(100, 200)]) == {"no host events": 100}


@pytest.mark.parametrize(
    "name",
    [
        "autograd::engine::evaluate_function: AddmmBackward0",
        "TorchDynamo Cache Lookup",
        "## Call CompiledFxGraph fzhmhlhomhf ##",
        "Torch-Compiled Region: 0/0",
        "CompiledFunctionBackward",
        "delta_r2",
        "Optimizer.step#AdamW.step",
        "DistributedDataParallel.forward",
        "logit",
        "LogSoftmaxBackward0",
        "catalog",
        "gcd",
        "## metrics:add ##",
    ],
)
def test_names_that_lie_are_no_cause(name: str) -> None:
    names = pl.Series([name])
    assert not any(names.str.contains(pattern).any() for _, pattern in named_causes())
