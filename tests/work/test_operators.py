"""Work of kernels: whose op's, how it is split, what stays unknown."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.build import Row, kernel, launch, op, trace
from trace_doctor.trace import Trace
from trace_doctor.work import operators

MM = {"shapes": "[[4, 8], [8, 6]]", "dtypes": '["c10::BFloat16", "c10::BFloat16"]', "concrete": '["", ""]'}
MM_FLOPS = 2.0 * 4 * 8 * 6
MM_BYTES = 2.0 * (32 + 48 + 24)
COPY = {
    "shapes": "[[8, 4], [8, 4], []]",
    "dtypes": '["float", "c10::BFloat16", "Scalar"]',
    "concrete": '["", "", "False"]',
}


def work(*activities: Row, ops: list[Row], calls: list[Row] | None = None) -> pl.DataFrame:
    return operators.estimate(classified(trace(*activities, *ops, *(calls or []))))


def classified(built: Trace) -> Trace:
    """As after linking and classification: activities bring their own op, parent, tensor and dtype."""
    from dataclasses import replace

    columns = {"tensor": pl.Boolean, "dtype": pl.String, "family": pl.String}
    missing = [
        pl.lit(None, dtype).alias(name) for name, dtype in columns.items() if name not in built.activities.columns
    ]
    return replace(built, activities=built.activities.with_columns(missing))


def gemm(start_ns: int, duration_ns: int, owner: int | None, **more: Any) -> Row:
    return kernel(start_ns, duration_ns, more.pop("name", "gemm"), op=owner, tensor=True, **{"family": "gemm"} | more)


def other(start_ns: int, duration_ns: int, owner: int | None, name: str = "elementwise", **more: Any) -> Row:
    return kernel(start_ns, duration_ns, name, op=owner, tensor=False, **more)


def nested(*names_and_values: tuple[str, dict[str, Any]]) -> list[Row]:
    """Ops each inside the one before."""
    return [
        op(0, 100, name, parent=row - 1 if row else None, **values)
        for row, (name, values) in enumerate(names_and_values)
    ]


def test_a_kernel_takes_its_ops_work() -> None:
    found = work(gemm(0, 10, 0), ops=nested(("aten::mm", MM)))
    assert found.rows() == [(0, MM_FLOPS, None, MM_BYTES, "bf16", False, None, True, "aten::mm", 0, False)]
    assert found.columns == [
        "activity",
        "flops",
        "flops_most",
        "bytes_moved",
        "op_dtype",
        "recompute",
        "pass",
        "has_shapes",
        "formula_op",
        "op_row",
        "multiplies_less",
    ]
    assert found.schema["op_row"] == found.schema["activity"] == pl.UInt32


def test_a_plain_kernel_beside_winograd_transforms_multiplies_less_than_is_counted() -> None:
    convolution = {
        "shapes": "[[1, 4, 8, 8], [4, 4, 3, 3], [], [], [], []]",
        "dtypes": '["float", "float", "ScalarList", "ScalarList", "ScalarList", "Scalar"]',
        "concrete": '["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]',
    }
    transform = "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams)"
    ops = [
        op(0, 50, "aten::cudnn_convolution", **convolution),
        op(60, 30, "aten::cudnn_convolution", **convolution),
        op(100, 50, "aten::mm", **MM),
    ]
    found = work(other(0, 5, 0, transform), gemm(5, 20, 0), gemm(60, 20, 1), gemm(100, 20, 2), ops=ops)
    assert found["op_row"].to_list() == [None, 0, 1, 2]
    assert found["multiplies_less"].to_list() == [True, True, False, False]


def test_only_the_innermost_op_counts() -> None:
    linear = {"shapes": "[[4, 8], [6, 8], []]", "dtypes": '["c10::BFloat16", "c10::BFloat16", ""]'}
    found = work(gemm(0, 10, 2), ops=nested(("aten::linear", linear), ("aten::matmul", MM), ("aten::mm", MM)))
    assert found.select("flops", "formula_op", "op_row").rows() == [(MM_FLOPS, "aten::mm", 2)]


def test_an_op_whose_inner_op_did_the_work_has_none_left() -> None:
    found = work(gemm(0, 10, 1), gemm(20, 10, 0), ops=nested(("aten::matmul", MM), ("aten::mm", MM)))
    assert found["flops"].to_list() == [MM_FLOPS, None]
    assert found["bytes_moved"].to_list() == [MM_BYTES, None]


def test_an_op_without_a_formula_leads_to_the_one_around_it() -> None:
    found = work(gemm(0, 10, 1), ops=nested(("aten::mm", MM), ("custom::launcher", {})))
    assert found.select("flops", "op_row", "has_shapes").rows() == [(MM_FLOPS, 0, True)]


def test_flops_and_bytes_are_split_by_duration() -> None:
    found = work(gemm(0, 30, 0), gemm(40, 10, 0), ops=nested(("aten::mm", MM)))
    assert found["flops"].to_list() == [MM_FLOPS * 0.75, MM_FLOPS * 0.25]
    assert found["bytes_moved"].to_list() == [MM_BYTES * 0.75, MM_BYTES * 0.25]


def test_kernels_of_no_length_share_evenly() -> None:
    found = work(gemm(0, 0, 0), gemm(0, 0, 0), ops=nested(("aten::mm", MM)))
    assert found["flops"].to_list() == [MM_FLOPS / 2] * 2


def test_other_kernels_of_a_tensor_op_get_nothing() -> None:
    found = work(gemm(0, 30, 0), other(40, 10, 0, "splitKreduce"), ops=nested(("aten::mm", MM)))
    assert found.select("flops", "bytes_moved").rows() == [(MM_FLOPS, MM_BYTES), (None, None)]


def test_a_tensor_op_without_tensor_kernels_gives_its_bytes_but_no_flops() -> None:
    found = work(other(0, 30, 0, "gemv_by_hand"), ops=nested(("aten::mm", MM)))
    assert found.select("flops", "bytes_moved").rows() == [(None, MM_BYTES)]


def test_a_copy_inside_a_tensor_op_takes_its_own_bytes() -> None:
    found = work(other(0, 5, 1), gemm(10, 5, 0), ops=nested(("aten::mm", MM), ("aten::copy_", COPY)))
    assert found.select("flops", "bytes_moved").rows() == [(None, 32 * 4.0 + 32 * 2.0), (MM_FLOPS, MM_BYTES)]


def test_kernels_of_a_graph_have_no_op() -> None:
    graph = launch(0, 1, "cudaGraphLaunch", kind="graph_launch")
    plain = launch(2, 1, kind="launch")
    found = work(gemm(0, 10, 0, call=0), gemm(20, 10, 0, call=1), ops=nested(("aten::mm", MM)), calls=[graph, plain])
    assert found["flops"].to_list() == [None, MM_FLOPS]


def test_copies_sets_and_communication_have_no_work() -> None:
    found = work(
        kernel(0, 5, "Memcpy DtoD", kind="copy", op=0),
        kernel(9, 5, "ncclDevKernel_AllReduce", op=0),
        ops=nested(("aten::copy_", COPY)),
    )
    assert found["bytes_moved"].to_list() == [None, None]


def test_an_unlinked_kernel_is_unknown() -> None:
    found = work(gemm(0, 10, None), ops=nested(("aten::mm", MM)))
    assert found.rows() == [(0, None, None, None, None, False, None, False, None, None, False)]


def test_a_trace_without_host_ops_is_unknown() -> None:
    found = work(gemm(0, 10, None), ops=[])
    assert found.rows() == [(0, None, None, None, None, False, None, False, None, None, False)]


def test_an_empty_trace_gives_no_rows() -> None:
    assert work(ops=[]).height == 0


def test_ops_without_shapes_are_no_ops_with_shapes() -> None:
    found = work(gemm(0, 10, 0), ops=nested(("aten::mm", {"shapes": "[]"})))
    assert found.select("flops", "has_shapes").rows() == [(None, False)]


def test_the_kernels_name_tells_the_width_of_untyped_elements() -> None:
    lists = {"shapes": "[[[4, 2], [3]], []]", "dtypes": '["TensorList", "Scalar"]'}
    opaque = "void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 2>"
    typed = "void at::native::CatArrayBatchedCopy<float, unsigned int, 2>"
    rows = [other(0, 5, 0, opaque), other(6, 5, 1, typed), other(12, 5, 2, "cat"), other(18, 5, 3, "cat", dtype="fp16")]
    found = work(*rows, ops=[op(0, 1, "aten::cat", **lists) for _ in range(4)])
    assert found["bytes_moved"].to_list() == [44.0, 88.0, None, 44.0]


def test_old_recordings_have_flops_without_dtypes() -> None:
    found = work(
        gemm(0, 10, 0, dtype="fp32"), gemm(20, 10, 1), ops=[op(0, 1, **MM | {"dtypes": "[]"}) for _ in range(2)]
    )
    assert found.select("flops", "bytes_moved", "op_dtype").rows() == [
        (MM_FLOPS, 4.0 * 104, None),
        (MM_FLOPS, None, None),
    ]


def test_qwen_projection() -> None:
    """The count that the issue states: mm [8944, 1024] x [1024, 2816] is 51.58 GFLOP."""
    shapes = {"shapes": "[[8944, 1024], [1024, 2816]]", "dtypes": MM["dtypes"]}
    found = work(gemm(0, 10, 0), ops=nested(("aten::mm", shapes)))
    assert found["flops"].item() == 51_581_550_592 == 2 * 8944 * 1024 * 2816


def node(start_ns: int, name: str, parent: int | None, **more: Any) -> Row:
    return op(start_ns, 10, name, parent=parent, **more)


def recomputed(*ops: Row, launched_by: int) -> bool:
    return bool(work(gemm(0, 10, launched_by), ops=list(ops))["recompute"].item())


LINEAR = {"shapes": "[[4, 8], [6, 8]]"}
ENGINE = "autograd::engine::evaluate_function: "


def test_a_forward_op_run_again_under_a_backward_node_is_recompute() -> None:
    """Not re-entrant checkpointing: the first node that unpacks a saved tensor holds the forward ops, numbered."""
    rows = [
        node(0, "aten::linear", None, sequence=7, forward_thread=0, **LINEAR),
        node(1, "aten::addmm", 0, sequence=8, forward_thread=0),
        node(20, f"{ENGINE}AddmmBackward0", None, sequence=8, forward_thread=1),
        node(21, "AddmmBackward0", 2, sequence=8, forward_thread=1),
        node(22, "aten::linear", 3, sequence=13, forward_thread=0, **LINEAR),
        node(23, "aten::addmm", 4, sequence=14, forward_thread=0, **MM),
        node(26, "aten::mm", 3, **MM),
    ]
    assert [recomputed(*rows, launched_by=row) for row in range(7)] == [False] * 4 + [True, True, False]


def test_a_reentrant_checkpoint_recomputes_outside_its_nested_nodes() -> None:
    rows = [
        node(0, f"{ENGINE}CheckpointFunctionBackward", None, sequence=0, forward_thread=1),
        node(1, "CheckpointFunctionBackward", 0, sequence=0, forward_thread=1),
        node(2, "aten::mm", 1, **MM),
        node(5, f"{ENGINE}MmBackward0", 1, sequence=2, forward_thread=1),
        node(6, "MmBackward0", 3, sequence=2, forward_thread=1),
        node(7, "aten::mm", 4, **MM),
    ]
    assert [recomputed(*rows, launched_by=row) for row in range(6)] == [False, False, True, False, False, False]


def test_double_backward_is_no_recompute() -> None:
    """Its ops are numbered too, but none ran forward as the outermost op: the forward's mm stands inside aten::linear."""
    rows = [
        node(0, "aten::linear", None, sequence=0, forward_thread=0, **LINEAR),
        node(1, "aten::mm", 0, sequence=1, forward_thread=0, **MM),
        node(20, f"{ENGINE}MmBackward0", None, sequence=1, forward_thread=1),
        node(21, "MmBackward0", 2, sequence=1, forward_thread=1),
        node(22, "aten::mm", 3, sequence=5, forward_thread=0, **MM),
    ]
    assert [recomputed(*rows, launched_by=row) for row in range(5)] == [False] * 5


def test_an_attention_forward_inside_backward_is_recompute() -> None:
    """Of compiled code the ops say nothing else; no gradient formula calls the forward."""
    attention = {"shapes": "[[1, 2, 8, 4], [1, 2, 8, 4], [1, 2, 8, 4]]"}
    rows = [
        node(0, f"{ENGINE}CompiledFunctionBackward", None, sequence=1, forward_thread=1),
        node(1, "aten::_scaled_dot_product_flash_attention", 0, **attention),
        node(2, "aten::_scaled_dot_product_flash_attention_backward", 0, **attention),
        node(3, "aten::mm", 0, **MM),
    ]
    assert [recomputed(*rows, launched_by=row) for row in range(4)] == [False, True, False, False]


def test_backward_is_what_stands_in_a_node_and_forward_what_autograd_numbered_elsewhere() -> None:
    rows = [
        node(0, "aten::linear", None, sequence=0, forward_thread=0, **LINEAR),
        node(1, "aten::mm", 0, sequence=1, forward_thread=0, **MM),
        node(20, f"{ENGINE}MmBackward0", None, sequence=1, forward_thread=1),
        node(21, "MmBackward0", 2, sequence=1, forward_thread=1),
        node(22, "aten::mm", 3, **MM),
        node(40, "aten::mm", None, sequence=-1, forward_thread=0, **MM),
    ]
    passes = [work(gemm(0, 10, row), ops=rows)["pass"].item() for row in range(6)]
    assert passes == ["forward", "forward", "backward", "backward", "backward", None]


CONVOLUTION = {
    "shapes": "[[1, 2, 4, 4], [3, 2, 1, 1], [], [], [], [], [], [], []]",
    "dtypes": '["c10::Half", "c10::Half", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]',
    "concrete": '["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]',
}
CONVOLUTION_BYTES = 2.0 * (32 + 6 + 48)


def test_kernels_that_change_the_layout_for_a_convolution_move_one_of_its_three_tensors_each() -> None:
    found = work(
        other(0, 5, 0, "batched_transpose_32x32_half"),
        gemm(5, 10, 0),
        other(15, 3, 0, "batched_transpose_16x32_half"),
        other(18, 1, 0, "SubTensorOpWithScalar1d"),
        ops=nested(("aten::convolution", CONVOLUTION)),
    )
    assert found["bytes_moved"].to_list() == [
        2 / 3 * CONVOLUTION_BYTES,
        CONVOLUTION_BYTES,
        2 / 3 * CONVOLUTION_BYTES,
        1 / 3 * CONVOLUTION_BYTES,
    ]
    assert found["flops"].to_list() == [None, 2.0 * 16 * 6, None, None]


def test_such_a_kernel_of_another_op_or_of_unknown_name_moves_nothing_known() -> None:
    found = work(
        other(0, 5, 0, "batched_transpose_32x32_half"),
        other(5, 5, 0, "splitKreduce_kernel"),
        gemm(10, 10, 0),
        ops=nested(("aten::mm", MM)),
    )
    assert found["bytes_moved"].to_list() == [None, None, MM_BYTES]


CUSTOM = {"shapes": "[[4, 8], [6, 8]]", "dtypes": '["c10::BFloat16", "c10::BFloat16"]'}


def test_an_unknown_op_with_one_matmul_kernel_is_the_matmul_that_its_tensors_can_be() -> None:
    found = work(gemm(0, 10, 0), other(10, 5, 0), ops=nested(("mylib::linear", CUSTOM)))
    assert found.select("flops", "formula_op").rows() == [(MM_FLOPS, "mylib::linear"), (None, None)]
    assert found["bytes_moved"].to_list() == [2.0 * (32 + 48), None]


def test_an_unknown_op_with_two_matmul_kernels_another_kind_or_a_known_op_around_it_is_not_read() -> None:
    twice = work(gemm(0, 10, 0), gemm(20, 10, 0), ops=nested(("mylib::mlp", CUSTOM)))
    attention = work(gemm(0, 10, 0, family="attention"), ops=nested(("mylib::attention", CUSTOM)))
    inside = work(
        gemm(0, 10, 1), ops=nested(("aten::mm", MM), ("mylib::linear", CUSTOM | {"shapes": "[[4, 8], [7, 8]]"}))
    )
    assert twice["flops"].to_list() == [None, None]
    assert attention["flops"].to_list() == [None]
    assert inside.select("flops", "formula_op").rows() == [(MM_FLOPS, "aten::mm")]


@pytest.mark.parametrize(
    "name", ["aten::unheard_of", "CompiledFunction", "MyFunctionBackward", "Torch-Compiled Region: 0/0"]
)
def test_what_holds_more_than_its_inputs_tell_is_not_read(name: str) -> None:
    assert work(gemm(0, 10, 0), ops=nested((name, CUSTOM)))["flops"].to_list() == [None]


def test_a_backward_node_learns_its_weights_from_the_forward_of_its_sequence_number() -> None:
    """Transformer Engine launches GEMMs without ops of their own: forward one, backward two."""
    inputs = {"shapes": "[[6, 8], [4, 8], [6]]", "dtypes": '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"]'}
    gradient = {"shapes": "[[4, 6]]", "dtypes": '["c10::BFloat16"]'}
    ops = [
        node(0, "_Linear", None, sequence=3, forward_thread=0, **inputs),
        node(20, f"{ENGINE}_LinearBackward", None, sequence=3, forward_thread=1),
        node(20, "_LinearBackward", 1, sequence=3, forward_thread=1, **gradient),
        node(40, "_LinearBackward", None, sequence=4, forward_thread=1, **gradient),
    ]
    found = work(gemm(0, 10, 0), gemm(20, 10, 2), gemm(30, 30, 2), gemm(60, 9, 3), ops=ops)
    assert found["flops"].to_list() == [MM_FLOPS, MM_FLOPS / 2, MM_FLOPS * 3 / 2, None]


FLASH = {"shapes": "[[1, 8, 2, 4], [1, 8, 2, 4], [1, 8, 2, 4]]", "dtypes": '["c10::Half", "c10::Half", "c10::Half"]'}
TRAITS = "Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::half_t, Flash_kernel_traits<64, 128, 128, 4, cutlass::half_t> >"
MAINLOOP = "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<128> >, 128, cutlass::bfloat16_t, float, cutlass::arch::Sm90"


@pytest.mark.parametrize(
    ("kernel_name", "share"),
    [
        (f"void flash_fwd_kernel<{TRAITS}, false, false, false, true, false>(Flash_fwd_params)", 1),  # 2.0
        (f"void flash_fwd_kernel<{TRAITS}, false, true, true, true, false>(Flash_fwd_params)", 0.5),  # 2.0
        (
            f"void flash_fwd_kernel<{TRAITS}, false, true, false, false, true, true, false>(Flash_fwd_params)",
            0.5,
        ),  # 2.4
        (f"void flash_fwd_kernel<{TRAITS}, false, false, true, false, true, true, false>(Flash_fwd_params)", None),
        (
            f"void cutlass::device_kernel<flash::FlashAttnFwdSm90<{MAINLOOP}, true, false, false> > >()",
            0.5,
        ),
        (
            f"void cutlass::device_kernel<flash::FlashAttnFwdSm90<{MAINLOOP}, false, true, false> > >()",
            None,
        ),
        ("fmha_v2_flash_attention_fp16_64_128_S_128_sm90_kernel", None),
    ],
)
def test_a_flash_kernels_name_tells_which_mask_it_was_compiled_for(kernel_name: str, share: float | None) -> None:
    found = work(gemm(0, 10, 0, name=kernel_name, family="attention"), ops=nested(("FlashAttnFunc", FLASH)))
    assert found["flops"].to_list() == [None if share is None else share * 4 * 2 * 8 * 8 * 4]
