"""Exports of Nsight Systems become the same frames as any other trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.loaders.exports import Row, call, copy, domain, export, gpu, graph, kernel, memset, nvtx, tid
from trace_doctor import Trace, load
from trace_doctor.errors import NothingToAnalyzeError

Loaded = Callable[..., Trace]
GEMM = "void at::native::my_gemm<float>(float*)"


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    def load_rows(*rows: Row | list[Row]) -> Trace:
        return load(export(tmp_path / "run.sqlite", *rows))

    return load_rows


def column(frame: pl.DataFrame, name: str) -> list[object]:
    return frame[name].cast(pl.String).to_list() if frame[name].dtype == pl.Categorical else frame[name].to_list()


def test_activities_of_every_kind(loaded: Loaded) -> None:
    trace = loaded(kernel(10, 15, GEMM, 1), copy(20, 22, 2), memset(30, 31, 3), graph(40, 90, 4))
    assert column(trace.activities, "name") == [
        GEMM,
        "Memcpy HtoD (Pinned -> Device)",
        "Memset (Device)",
        "CUDA graph (kernels not recorded)",
    ]
    assert column(trace.activities, "kind") == ["compute", "copy", "set", "graph"]
    assert trace.activities["start_ns"].to_list() == [10, 20, 30, 40]
    assert trace.activities["duration_ns"].to_list() == [5, 2, 1, 50]
    assert trace.activities["bytes"].to_list() == [None, 1024, 64, None]
    assert column(trace.activities, "grid") == ["[18, 1, 1]", None, None, None]


def test_whole_graphs_are_busy_time_and_said_to_be_opaque(loaded: Loaded) -> None:
    trace = loaded(graph(40, 90, 4), call(5, 9, 4, "cudaGraphLaunch_v10000"))
    assert trace.activities["call"].to_list() == [0]
    assert trace.calls["kind"].to_list() == ["graph_launch"]
    assert [w.code for w in trace.meta.warnings] == ["opaque-graphs"]
    assert "--cuda-graph-trace=node" in trace.meta.warnings[0].message


def test_launches_are_joined_by_process_and_correlation(loaded: Loaded) -> None:
    trace = loaded(
        [kernel(10 + pid, 15 + pid, GEMM, 7, pid=pid, deviceId=pid - 1) for pid in (1, 2)],
        [call(pid, pid + 1, 7, pid=pid) for pid in (2, 1)],
    )
    assert trace.meta.processes == ("1", "2")
    assert trace.activities.select("process", "device", "call").rows() == [(0, 0, 0), (1, 1, 1)]
    assert [trace.meta.threads[thread].process for thread in trace.calls["thread"]] == [0, 1]


def test_of_twin_rows_the_outermost_call_counts(loaded: Loaded) -> None:
    trace = loaded(
        kernel(30, 40, GEMM, 7), call(12, 18, 7, "cuLaunchKernel"), call(10, 20, 7), call(50, 51, 0), call(60, 61, 0)
    )
    assert trace.calls.select("start_ns", "correlation").rows() == [(10, 7), (50, 0), (60, 0)]
    assert column(trace.calls, "name")[0] == "cudaLaunchKernel"


def test_a_kernel_may_lack_its_launch(loaded: Loaded) -> None:
    trace = loaded(kernel(30, 40, GEMM, 7), call(10, 20, 8))
    assert trace.activities["call"].to_list() == [None]


def test_what_a_domain_of_a_library_opens_is_no_annotation(loaded: Loaded) -> None:
    trace = loaded(
        kernel(30, 40, GEMM, 7),
        domain(1, "NCCL"),
        domain(2, "my.trainer"),
        nvtx(1, 50, "iteration 1"),
        nvtx(2, 20, None, textId="ncclAllReduce", domainId=1),
        nvtx(3, 30, "phase 2", domainId=2),
        nvtx(4, 10, "cub::DeviceRadixSort", domainId=5),
    )
    assert column(trace.annotations, "name") == ["iteration 1", "phase 2"]
    assert column(trace.ops, "name") == ["ncclAllReduce", "cub::DeviceRadixSort"]


def test_a_domain_counts_within_its_process(loaded: Loaded) -> None:
    trace = loaded(
        [kernel(30 + pid, 40 + pid, GEMM, 7, pid=pid) for pid in (1, 2)],
        domain(1, "NCCL", pid=1),
        domain(1, "my.trainer", pid=2),
        [nvtx(3, 30, "step", domainId=1, pid=pid) for pid in (1, 2)],
    )
    assert len(trace.annotations) == len(trace.ops) == 1
    assert trace.meta.threads[trace.annotations["thread"][0]].process == 1


def test_emitted_ops_are_taken_apart(loaded: Loaded) -> None:
    text = (
        "aten::bmm, seq = 10306, op_id = 88714, sizes = [[1, 2048, 768], [1, 768, 768]], input_op_ids = [(1,0), (2,0)]"
    )
    trace = loaded(
        kernel(30, 40, GEMM, 7),
        call(12, 14, 7),
        nvtx(10, 20, text),
        nvtx(50, 60, "AddmmBackward0, seq = 12, op_id = 3"),
        nvtx(70, 80, "load a, b, c"),
    )
    assert trace.ops.select("name", "sequence", "shapes").with_columns(
        pl.col(pl.Categorical).cast(pl.String)
    ).rows() == [
        ("aten::bmm", 10306, "[[1, 2048, 768], [1, 768, 768]]"),
        ("AddmmBackward0", 12, None),
    ]
    assert column(trace.annotations, "name") == ["load a, b, c"]
    assert trace.activities["op"].to_list() == [0]
    assert trace.meta.has_shapes


def test_an_open_range_and_an_open_call_last_until_the_end(loaded: Loaded) -> None:
    trace = loaded(kernel(30, 100, GEMM, 7), call(20, None, 7), nvtx(10, None, "step 1"))
    assert trace.annotations["duration_ns"].to_list() == [90]
    assert trace.calls["duration_ns"].to_list() == [80]


def test_a_range_from_thread_to_thread_is_an_annotation(loaded: Loaded) -> None:
    trace = loaded(
        kernel(30, 40, GEMM, 7),
        nvtx(10, 25, "step 1", eventType=60, endGlobalTid=tid(9)),
        nvtx(5, 6, "x", eventType=34),
    )
    assert column(trace.annotations, "name") == ["step 1"]


def test_threads_have_the_names_they_gave_themselves(loaded: Loaded) -> None:
    trace = loaded(
        kernel(30, 40, GEMM, 7),
        call(1, 2, 7, thread=9),
        Row("ThreadNames", {"nameId": "pt_autograd_0", "priority": 20, "globalTid": tid(9)}),
    )
    assert [thread.label for thread in trace.meta.threads] == ["pt_autograd_0"]


def test_a_kernels_device_is_that_of_its_process(loaded: Loaded) -> None:
    # the profiler's GPU 1 is CUDA device 0
    trace = loaded(
        [kernel(30 + pid, 40 + pid, GEMM, 7, pid=pid, deviceId=pid - 1) for pid in (1, 2)],
        gpu(1, "NVIDIA A100-SXM4-80GB", cuDevice=0),
        gpu(0, cuDevice=1),
        [Row("TARGET_INFO_CUDA_DEVICE", {"gpuId": 1 - n, "cudaId": n, "pid": pid}) for n in (0, 1) for pid in (1, 2)],
    )
    assert [(info.label, info.name) for info in trace.meta.devices] == [
        ("0", "NVIDIA A100-SXM4-80GB"),
        ("1", "NVIDIA H100 80GB HBM3"),
    ]
    assert trace.meta.devices[1].memory_bandwidth == 3_352_320_000_000
    assert trace.meta.devices[1].clock_hz == 1_980_000_000
    assert trace.meta.node_devices == 2


def test_ranks_that_see_one_gpu_each_are_not_one_gpu(loaded: Loaded) -> None:
    trace = loaded([kernel(30 + pid, 40 + pid, GEMM, 7, pid=pid) for pid in (1, 2)], gpu())
    assert [info.label for info in trace.meta.devices] == ["[1] 0", "[2] 0"]


def test_processes_that_share_a_gpu_are_told_by_the_export(loaded: Loaded) -> None:
    trace = loaded(
        [kernel(30 + pid, 40 + pid, GEMM, 7, pid=pid) for pid in (1, 2)],
        gpu(),
        [Row("TARGET_INFO_CUDA_DEVICE", {"gpuId": 0, "cudaId": 0, "pid": pid}) for pid in (1, 2)],
    )
    assert len(trace.meta.devices) == 1
    assert trace.activities["stream"].n_unique() == 2


def test_older_exports_describe_gpus_elsewhere(loaded: Loaded) -> None:
    trace = loaded(
        kernel(30, 40, GEMM, 7),
        Row("TARGET_INFO_GPU", {"vmId": 1, "deviceId": 0, "name": "NVIDIA GeForce RTX 3080", "isDiscrete": 1}),
        Row(
            "TARGET_INFO_CUDA_GPU",
            {
                "name": "NVIDIA GeForce RTX 3080",
                "globalMemoryBandwidth": 760_080_000,
                "coreClockRate": 1_740_000,
                "deviceId": 0,
            },
        ),
    )
    (info,) = trace.meta.devices
    assert (info.name, info.memory_bandwidth, info.clock_hz) == (
        "NVIDIA GeForce RTX 3080",
        760_080_000_000,
        1_740_000_000,
    )


def test_nccl_tells_sizes_and_ranks(loaded: Loaded) -> None:
    payload = '{"NCCL communicator ID":13429301450432826988,"Message size [bytes]":4718592,"Reduction operation":"Avg"}'
    begun = '{"NCCL communicator ID":13429301450432826988,"No. of ranks":2,"Rank":1,"CUDA device":1}'
    trace = loaded(
        domain(1, "NCCL"),
        nvtx(1, 5, None, textId="ncclCommInitRankConfig", domainId=1, jsonText=begun),
        nvtx(10, 20, None, textId="ncclAllReduce", domainId=1, jsonText=payload),
        nvtx(21, 30, None, textId="ncclAllReduce", domainId=1, jsonText=payload),
        call(12, 14, 7),
        call(22, 24, 8),
        call(40, 44, 9),
        [kernel(60 * n, 60 * n + 10, "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 7 + n) for n in range(3)],
    )
    assert trace.collectives.select(
        "activity", "name", "in_elements", "dtype", "group", "group_size", "sequence"
    ).rows() == [
        (0, "ncclAllReduce", 4718592, "Byte", "13429301450432826988", 2, 0),
        (1, "ncclAllReduce", 4718592, "Byte", "13429301450432826988", 2, 1),
    ]
    assert (trace.meta.rank, trace.meta.world_size) == (1, 2)


def test_the_drivers_own_work_is_no_overhead_of_the_profiler(loaded: Loaded) -> None:
    span = {"start": 1, "end": 5, "globalTid": tid()}
    trace = loaded(
        kernel(30, 40, GEMM, 7),
        call(12, 14, 7),
        [
            Row("CUPTI_ACTIVITY_KIND_OVERHEAD", {**span, "nameId": "x", "overheadType": number})
            for number in (2, 3, 6, 8)
        ],
        Row("PROFILER_OVERHEAD", {**span, "nameId": "CUPTI Buffer flush"}),
    )
    assert sorted(zip(column(trace.annotations, "name"), column(trace.annotations, "kind"), strict=True)) == [
        ("CUDA module loading", "user"),
        ("CUPTI Buffer flush", "overhead"),
        ("Command Buffer Full", "overhead"),
        ("compilation: CUDA driver JIT", "user"),
        ("x", "overhead"),
    ]


def test_an_export_without_kernels_says_what_to_record(loaded: Loaded) -> None:
    with pytest.raises(NothingToAnalyzeError, match="no kernel table") as caught:
        loaded(call(12, 14, 7), nvtx(1, 2, "step 1"))
    assert "--trace=cuda" in str(caught.value.hint)
