"""Operation, size and wire bytes of communication kernels."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.build import Row, kernel, op, trace
from trace_doctor.work import collectives

MIB = 1 << 20


def estimated(*rows: Row) -> pl.DataFrame:
    return collectives.estimate(trace(*rows))


def told(activity: int, name: str, taken: int, given: int, ranks: int = 8, dtype: str = "BFloat16", **more: Any) -> Row:
    values = {
        "activity": activity,
        "name": name,
        "dtype": dtype,
        "in_elements": taken,
        "out_elements": given,
        "group_size": ranks,
    }
    return Row("collectives", values | more)


def nccl(name: str, start_ns: int = 0, **more: Any) -> Row:
    return kernel(start_ns, 10, f"ncclDevKernel_{name}", **more)


# nccl-tests doc/PERFORMANCE.md for 8 ranks: S is the total buffer of MIB bf16 elements
@pytest.mark.parametrize(
    ("name", "taken", "given", "operation", "wire"),
    [
        ("allreduce", MIB, MIB, "all_reduce", 2 * MIB * 2 * 7 / 8),
        ("_allgather_base", MIB // 8, MIB, "all_gather", 2 * MIB * 7 / 8),
        ("allgather_into_tensor_coalesced", MIB // 8, MIB, "all_gather", 2 * MIB * 7 / 8),
        ("_reduce_scatter_base", MIB, MIB // 8, "reduce_scatter", 2 * MIB * 7 / 8),
        ("all_to_all", MIB, MIB, "all_to_all", 2 * MIB * 7 / 8),
        ("broadcast", MIB, MIB, "broadcast", 2 * MIB),
        ("reduce", MIB, MIB, "reduce", 2 * MIB),
        ("send", MIB, 0, "send_recv", 2 * MIB),
        ("recv", 0, MIB, "send_recv", 2 * MIB),
    ],
)
def test_sizes_and_factors_are_those_of_nccl_tests(
    name: str, taken: int, given: int, operation: str, wire: float
) -> None:
    row = estimated(nccl("Generic"), told(0, name, taken, given)).row(0, named=True)
    assert (row["operation"], row["message_bytes"], row["wire_bytes"]) == (operation, 2 * MIB, wire)
    assert row["bus_factor"] == wire / (2 * MIB)
    assert row["is_pipeline"] == (operation == "send_recv")


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_Generic", None),
        ("void vllm::cross_device_reduce_2stage<half, 8>", "all_reduce"),
        ("void deep_ep::internode_ll::dispatch<true, 3, 7168>", "all_to_all"),
        ("multimem_all_reduce_kernel", "all_reduce"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::send", "send_recv"),
        ("_c10d_functional::all_gather_into_tensor", "all_gather"),
        ("c10d::scatter_", "scatter"),
    ],
)
def test_names_tell_the_operation(name: str, operation: str | None) -> None:
    assert collectives.operation_of(name) == operation


def test_a_kernel_that_nothing_describes_has_no_size() -> None:
    rows = estimated(nccl("AllReduce_Sum_f32_RING_LL")).rows()
    assert rows == [(0, "all_reduce", None, None, None, None, None, None, False)]


def test_an_all_to_all_is_no_pipeline_though_its_kernel_sends() -> None:
    rows = [nccl("SendRecv", op=1), op(0, 9, "c10d::alltoall_base_"), op(1, 3, "record_param_comms", parent=0)]
    assert estimated(*rows).select("operation", "is_pipeline").rows() == [("all_to_all", False)]


def test_a_default_kernel_is_what_its_like_are_told_to_be() -> None:
    told_rows = [nccl("SendRecv", 0), nccl("SendRecv", 20), told(0, "all_to_all", 8, 8)]
    assert estimated(*told_rows)["operation"].to_list() == ["all_to_all", "all_to_all"]


def test_a_default_kernel_that_runs_many_things_is_unknown() -> None:
    rows = [nccl("SendRecv", start_ns) for start_ns in (0, 20, 40)]
    found = estimated(*rows, told(0, "all_to_all", 8, 8), told(1, "allreduce", 8, 8))
    assert found.select("operation", "is_pipeline").rows() == [
        ("all_to_all", False),
        ("all_reduce", False),
        (None, False),
    ]


def test_a_send_among_sends_is_a_pipeline() -> None:
    found = estimated(
        nccl("SendRecv", 0),
        nccl("SendRecv", 20),
        nccl("SendRecv", 40),
        told(0, "send", 8, 0),
        told(1, "all_to_all", 8, 8),
    )
    assert found["is_pipeline"].to_list() == [True, False, True]


def test_older_traces_record_input_and_group_in_an_op() -> None:
    """Torch 2.1: the input first, the group's size after the split sizes; a list of tensors has no dtype, the kernel's name has."""
    listed = {
        "shapes": "[[[2048, 4]], [], [], [], [], [], []]",
        "dtypes": '["TensorList", "Scalar", "Scalar", "", "ScalarList", "ScalarList", "Scalar"]',
        "concrete": '["", "337", "0", "", "[]", "[]", "8"]',
    }
    typed = listed | {
        "shapes": "[[2048, 4], [], [], [], [], [], []]",
        "dtypes": listed["dtypes"].replace("TensorList", "float"),
    }
    rows = [
        nccl("AllReduce_Sum_f16_RING_LL(ncclDevComm*)", op=0),
        nccl("AllGather_RING_LL", 20, op=1),
        op(0, 9, "record_param_comms", **listed),
        op(0, 9, "record_param_comms", **typed),
    ]
    found = estimated(*rows).select("group_size", "message_bytes", "wire_bytes").rows()
    assert found == [(8, 16384.0, 16384.0 * 7 / 4), (8, 8 * 32768.0, 8 * 32768.0 * 7 / 8)]


def test_a_group_of_one_sends_nothing() -> None:
    row = estimated(nccl("AllReduce_Sum_f32_RING_LL"), told(0, "allreduce", 8, 8, ranks=1)).row(0, named=True)
    assert (row["bus_factor"], row["wire_bytes"]) == (0.0, 0.0)


def test_compute_is_no_collective() -> None:
    assert estimated(kernel(0, 10, "gemm")).height == 0
