"""Ops, launches and activities."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import kernel, launch, launched, op, trace
from trace_doctor.loaders import kineto
from trace_doctor.loaders.linking import call_kinds, link
from trace_doctor.trace import Trace


def links(traced: Trace) -> list[int | None]:
    return link(traced).activities["call"].to_list()


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "launch",
            "cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel cudaLaunchKernel_v7000 cudaLaunch",
        ),
        ("launch", "cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel cuLaunchGridAsync"),
        ("launch", "hipLaunchKernel hipExtLaunchKernel hipModuleLaunchKernel hipExtModuleLaunchKernel"),
        ("launch", "hipLaunchCooperativeKernel hipExtLaunchMultiKernelMultiDevice hipLaunchKernelExC"),
        ("launch", "urEnqueueKernelLaunch urEnqueueKernelLaunchCustomExp zeCommandListAppendLaunchKernel"),
        ("graph_launch", "cudaGraphLaunch cudaGraphLaunch_v10000 cuGraphLaunch hipGraphLaunch"),
        ("copy", "cudaMemcpy cudaMemcpyAsync cudaMemcpy2DAsync cuMemcpyHtoDAsync_v2 hipMemcpyWithStream"),
        ("copy", "urEnqueueUSMMemcpy urEnqueueMemBufferRead zeCommandListAppendMemoryCopy"),
        ("set", "cudaMemsetAsync cuMemsetD8Async hipMemsetAsync urEnqueueUSMFill"),
        ("synchronisation", "cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cuCtxSynchronize"),
        ("synchronisation", "hipDeviceSynchronize hipStreamSynchronize urQueueFinish zeEventHostSynchronize"),
        ("event_wait", "cudaStreamWaitEvent cudaStreamWaitEvent_v3020 cuStreamWaitEvent hipStreamWaitEvent"),
        (
            "malloc",
            "cudaMalloc cudaMallocAsync cudaMallocHost cudaHostAlloc hipMalloc hipHostMalloc hipExtMallocWithFlags",
        ),
        ("malloc", "cuMemAlloc_v2 cuMemCreate cuMemMap urUSMDeviceAlloc"),
        ("free", "cudaFree cudaFreeAsync cudaFreeHost hipFree hipHostFree cuMemFree_v2 cuMemUnmap urUSMFree"),
        (
            "other",
            "cudaEventRecord cudaEventQuery cudaStreamIsCapturing cudaFuncSetAttribute INVALID cudaLaunchHostFunc",
        ),
        ("other", "cudaGraphInstantiate cudaThreadExchangeStreamCaptureMode cudaMemGetInfo notCudaMalloc"),
    ],
)
def test_what_a_call_does_is_read_off_its_name(kind: str, names: str) -> None:
    kinds = call_kinds(pl.Series(names.split(), dtype=pl.Categorical))
    assert dict(zip(names.split(), kinds, strict=True)) == dict.fromkeys(names.split(), kind)


def test_an_op_a_launch_and_its_kernel() -> None:
    linked = link(
        trace(op(0, 100, "aten::linear"), op(10, 50, "aten::addmm"), launched(200, 30, at_ns=20, correlation=5))
    )
    assert linked.activities.select("call", "op").rows() == [(0, 1)]
    assert linked.calls.select("kind", "op").rows() == [("launch", 1)]
    assert linked.ops["parent"].to_list() == [None, 0]


def test_one_graph_launch_has_many_kernels() -> None:
    graph = launch(5, 2, "cudaGraphLaunch", correlation=9)
    linked = link(trace(graph, *(kernel(10 + 3 * number, 2, correlation=9) for number in range(4))))
    assert linked.activities["call"].to_list() == [0, 0, 0, 0]
    assert linked.calls["kind"].to_list() == ["graph_launch"]


@pytest.mark.parametrize("nothing", [0, -1, None])
def test_correlation_ids_that_mean_none(nothing: int | None) -> None:
    assert links(trace(launch(0, 1, correlation=nothing), kernel(5, 1, correlation=nothing))) == [None]


def test_a_kernel_without_launch_record() -> None:
    linked = link(trace(launch(0, 1, correlation=1), kernel(5, 1, correlation=2)))
    assert linked.activities.select("call", "op").rows() == [(None, None)]


def test_of_calls_that_share_an_id_the_launch_wins_and_rows_stay_single() -> None:
    calls = [
        launch(1, 1, "cudaEventRecord", correlation=7),
        launch(2, 9, "cudaLaunchKernel", correlation=7),
        launch(4, 5, "cuLaunchKernel", correlation=7),
    ]
    assert links(trace(*calls, kernel(20, 5, correlation=7))) == [1]


def test_a_call_of_unknown_name_is_what_it_enqueued() -> None:
    calls = [
        launch(1, 1, "INVALID", correlation=1),
        launch(2, 1, "newCopy", correlation=2),
        launch(3, 1, "newCall", correlation=3),
    ]
    linked = link(trace(*calls, kernel(5, 1, correlation=1), kernel(6, 1, correlation=2, kind="copy")))
    assert linked.calls["kind"].to_list() == ["launch", "copy", "other"]


def test_backward_ops_stand_under_the_autograd_thread() -> None:
    forward = op(0, 1000, "aten::mm")
    backward = [
        op(100, 500, "autograd::engine::evaluate_function: MmBackward0", thread=1),
        op(150, 300, "aten::mm", thread=1),
    ]
    linked = link(trace(forward, *backward, launched(900, 10, at_ns=200, correlation=1, thread=1), threads=2))
    assert linked.ops["parent"].to_list() == [None, None, 1]
    assert linked.calls["op"].to_list() == [2]


def merged(*, guesses: tuple[int | None, int | None]) -> Trace:
    """Two processes that use the same ids, each with its own device; process 0 launches late."""
    rows = []
    for number in range(1, 6):
        rows += [
            launch(1000 * number, 5, thread=0, correlation=number),
            kernel(1000 * number + 50, 5, device=0, process=guesses[0], correlation=number),
            launch(1000 * number + 500, 5, thread=1, correlation=number + 2),
            kernel(1000 * number + 550, 5, device=1, process=guesses[1], correlation=number + 2),
        ]
    return trace(*rows, threads=(0, 1))


@pytest.mark.parametrize("guesses", [(0, 1), (None, None)])
def test_merged_processes_keep_their_own_ids(guesses: tuple[int | None, int | None]) -> None:
    linked = link(merged(guesses=guesses))
    assert linked.activities.select("device", "process").unique().sort("device").rows() == [(0, 0), (1, 1)]
    threads = linked.calls["thread"].gather(linked.activities["call"])
    assert threads.to_list() == linked.activities["process"].to_list()


def test_a_device_goes_to_the_only_process_that_launches() -> None:
    """The profiler's own rows make a process too."""
    linked = link(trace(launch(0, 1, correlation=1, thread=1), kernel(5, 1, correlation=1), threads=(0, 1)))
    assert linked.activities.select("process", "call").rows() == [(1, 0)]


def test_the_loaders_word_counts_when_processes_explain_a_device_alike() -> None:
    calls = [launch(0, 1, correlation=1, thread=thread) for thread in (0, 1)]
    linked = link(trace(*calls, kernel(5, 1, correlation=1, process=1), threads=(0, 1)))
    assert linked.activities.select("process", "call").rows() == [(1, 1)]


def test_linking_twice_changes_nothing() -> None:
    once = link(merged(guesses=(0, 1)))
    twice = link(once)
    for name in ("activities", "ops", "calls"):
        assert getattr(once, name).equals(getattr(twice, name))


@pytest.mark.parametrize("name", ["qwen-0.5b-infer-H100.json.gz", "nanogpt-8xH100/rank0.json.gz"])
def test_nesting_agrees_with_the_profilers_own_ids(name: str, shared: Path) -> None:
    linked = link(kineto.load(shared / "traces" / "pytorch" / name, jobs=1))
    named = linked.ops.filter(pl.col("external") > 0).select("external", named="op")
    launches = linked.calls.filter(pl.col("kind").is_in(["launch", "copy", "set"]) & (pl.col("external") > 0))
    pairs = launches.join(named, on="external")
    assert len(pairs) > 1000
    assert pairs.filter(pl.col("op") != pl.col("named")).is_empty()


_IDS = st.one_of(st.none(), st.integers(-2, 6), st.integers((1 << 62) - 2, 1 << 62))
_OWNED = st.tuples(st.integers(0, 1), _IDS)


@given(calls=st.lists(_OWNED, max_size=8), kernels=st.lists(_OWNED, min_size=1, max_size=8))
def test_an_activity_belongs_to_the_first_call_of_its_process_and_id(
    calls: list[tuple[int, int | None]], kernels: list[tuple[int, int | None]]
) -> None:
    """Whatever the ids are: shared or not, in order or not, and however large."""
    traced = trace(
        *(launch(at, 1, correlation=number, thread=process) for at, (process, number) in enumerate(calls)),
        *(kernel(100 + at, 1, correlation=number, process=process) for at, (process, number) in enumerate(kernels)),
        threads=(0, 1),
    )
    traced = replace(traced, meta=replace(traced.meta, format="nsight"))  # the processes are known
    ids = [owned if owned[1] and owned[1] > 0 else None for owned in kernels]
    assert links(traced) == [calls.index(owned) if owned in calls else None for owned in ids]
