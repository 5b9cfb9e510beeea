"""Every FLOPs formula against torch's own counter, on shapes as the profiler recorded them; bytes by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.work import attention, convolution, matmul, memory_ops, operators
from trace_doctor.work.shapes import Argument, Call, Volume, Work, parse

torch = pytest.importorskip("torch")
BF16 = "c10::BFloat16"


def recorded(run: Callable[[], Any], name: str, folder: Path) -> tuple[Call, int]:
    """What the profiler writes of the op `name` in `run`, and the FLOPs that torch counts."""
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        run()
    recording.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    args = next(
        event["args"] for event in events if event.get("name") == name and "Input Dims" in event.get("args", {})
    )
    texts = [json.dumps(args[key]) for key in ("Input Dims", "Input type", "Concrete Inputs")]
    call = parse(name, *texts)
    assert call is not None
    with FlopCounterMode(display=False) as counter:
        run()
    return call, counter.get_total_flops()


def flops(call: Call) -> float | None:
    work = work_of(call)
    return work.flops if work else None


def work_of(call: Call) -> Work | None:
    formula = operators.formula_of(call.name)
    return formula(call) if formula else None


def on_meta(*shape: int, dtype: Any = None) -> Any:
    return torch.empty(shape, device="meta", dtype=dtype or torch.bfloat16)


ATEN = torch.ops.aten
MATMULS: dict[str, Callable[[], Any]] = {
    "aten::mm": lambda: torch.mm(on_meta(3, 5), on_meta(5, 7)),
    "aten::addmm": lambda: torch.addmm(on_meta(7), on_meta(3, 5), on_meta(5, 7)),
    "aten::bmm": lambda: torch.bmm(on_meta(2, 3, 5), on_meta(2, 5, 7)),
    "aten::baddbmm": lambda: torch.baddbmm(on_meta(2, 3, 7), on_meta(2, 3, 5), on_meta(2, 5, 7)),
    "aten::linear": lambda: torch.nn.functional.linear(on_meta(4, 3, 5), on_meta(7, 5), on_meta(7)),
    "aten::matmul": lambda: torch.matmul(on_meta(4, 1, 3, 5), on_meta(6, 5, 7)),
    "aten::_scaled_mm": lambda: ATEN._scaled_mm(
        on_meta(16, 32, dtype=torch.float8_e4m3fn),
        on_meta(48, 32, dtype=torch.float8_e4m3fn).t(),
        on_meta(1, dtype=torch.float32),
        on_meta(1, dtype=torch.float32),
        out_dtype=torch.bfloat16,
    ),
}
CONVOLUTIONS: dict[str, Callable[[], Any]] = {
    "1d": lambda: torch.nn.functional.conv1d(on_meta(2, 4, 17), on_meta(6, 4, 3), stride=2, padding=1),
    "2d": lambda: torch.nn.functional.conv2d(
        on_meta(2, 4, 9, 11), on_meta(6, 4, 3, 3), on_meta(6), padding=(1, 0), dilation=2
    ),
    "3d": lambda: torch.nn.functional.conv3d(on_meta(1, 2, 5, 6, 7), on_meta(4, 2, 3, 2, 1)),
    "groups": lambda: torch.nn.functional.conv2d(on_meta(2, 8, 9, 9), on_meta(12, 2, 3, 3), groups=4),
    "depthwise": lambda: torch.nn.functional.conv2d(on_meta(2, 8, 9, 9), on_meta(8, 1, 3, 3), groups=8),
    "transposed": lambda: torch.nn.functional.conv_transpose2d(
        on_meta(2, 8, 5, 5), on_meta(8, 3, 4, 4), stride=2, padding=1, output_padding=1, groups=2
    ),
}


@pytest.mark.parametrize("name", MATMULS)
def test_matmuls_count_as_torch_counts(name: str, tmp_path: Path) -> None:
    call, expected = recorded(MATMULS[name], name, tmp_path)
    assert expected > 0
    assert flops(call) == expected


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("name", ["aten::convolution"])
def test_convolutions_count_as_torch_counts(kind: str, name: str, tmp_path: Path) -> None:
    call, expected = recorded(CONVOLUTIONS[kind], name, tmp_path)
    assert expected > 0
    assert flops(call) == expected


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions_write_what_torch_returns(kind: str, tmp_path: Path) -> None:
    call, _ = recorded(CONVOLUTIONS[kind], "aten::convolution", tmp_path)
    inputs = [argument.shape for argument in call.arguments if argument.shape]
    elements = sum(torch.Size(shape).numel() for shape in inputs) + CONVOLUTIONS[kind]().numel()
    work = work_of(call)
    assert work is not None
    assert work.moved == Volume(2.0 * elements)


@pytest.mark.parametrize("mask", [[True, True, False], [False, True, True], [True, False, False]])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolution_backward_counts_as_torch_counts(mask: list[bool], transposed: bool, tmp_path: Path) -> None:
    grad, weight = ((2, 6, 11, 11), (4, 6, 3, 3)) if transposed else ((2, 6, 7, 7), (6, 4, 3, 3))

    def run() -> None:
        ATEN.convolution_backward(
            on_meta(*grad),
            on_meta(2, 4, 9, 9),
            on_meta(*weight),
            [6],
            [1, 1],
            [0, 0],
            [1, 1],
            transposed,
            [0, 0],
            1,
            mask,
        )

    call, expected = recorded(run, "aten::convolution_backward", tmp_path)
    assert expected > 0
    assert flops(call) == expected


def qkv(heads_kv: int = 4) -> list[Any]:
    return [on_meta(2, 4, 16, 8), on_meta(2, heads_kv, 24, 8), on_meta(2, heads_kv, 24, 8)]


FORWARD = {
    "aten::_scaled_dot_product_flash_attention": lambda causal: ATEN._scaled_dot_product_flash_attention(
        *square(), 0.0, causal
    ),
    "aten::_scaled_dot_product_efficient_attention": lambda causal: ATEN._scaled_dot_product_efficient_attention(
        *square(), None, True, 0.0, causal
    ),
    "aten::_scaled_dot_product_cudnn_attention": lambda causal: ATEN._scaled_dot_product_cudnn_attention(
        *square(), None, True, 0.0, causal
    ),
}


def square() -> list[Any]:
    return [on_meta(2, 4, 16, 8) for _ in range(3)]


@pytest.mark.parametrize("name", FORWARD)
def test_attention_counts_as_torch_counts_and_half_where_causal(name: str, tmp_path: Path) -> None:
    full, expected = recorded(lambda: FORWARD[name](False), name, tmp_path)
    causal, _ = recorded(lambda: FORWARD[name](True), name, tmp_path)
    assert expected == 2 * 2 * 2 * 4 * 16 * 16 * 8
    assert (flops(full), flops(causal)) == (expected, expected / 2)


def test_attention_backward_counts_four_of_the_five_matmuls_that_torch_counts(tmp_path: Path) -> None:
    q, k, v = square()
    lse, seed = on_meta(2, 4, 16, dtype=torch.float32), on_meta(dtype=torch.int64)

    def run() -> None:
        ATEN._scaled_dot_product_flash_attention_backward(
            q, q, k, v, q, lse, None, None, 16, 16, 0.0, False, seed, seed
        )

    call, counted = recorded(run, "aten::_scaled_dot_product_flash_attention_backward", tmp_path)
    assert flops(call) == counted * 4 / 5


def test_attention_with_a_longer_key_attends_to_all_of_it(tmp_path: Path) -> None:
    call, expected = recorded(
        lambda: ATEN._scaled_dot_product_flash_attention(*qkv(), 0.0, False),
        "aten::_scaled_dot_product_flash_attention",
        tmp_path,
    )
    assert flops(call) == expected == 2 * 2 * 2 * 4 * 16 * 24 * 8


def test_memory_efficient_attention_knows_its_kind_of_mask(tmp_path: Path) -> None:
    """As many heads as tokens: torch's counter takes one for the other in this op, which xFormers has too."""
    name = "aten::_efficient_attention_forward"

    def run(kind: int) -> Callable[[], Any]:
        q, k, v = [on_meta(2, 16, 16, 8) for _ in range(3)]
        return lambda: ATEN._efficient_attention_forward(q, k, v, None, None, None, None, None, 0.0, kind)

    full, expected = recorded(run(0), name, tmp_path)
    causal, _ = recorded(run(2), name, tmp_path)
    assert expected == 2 * 2 * 2 * 16 * 16 * 16 * 8
    assert (flops(full), flops(causal)) == (expected, expected / 2)
    assert flops(full._replace(name="xformers::efficient_attention_forward_cutlass")) == expected


def test_a_flash_attention_function_takes_its_mask_from_flag_or_kernel() -> None:
    q_k_v = arguments(*[(2, 16, 4, 8)] * 3)
    flagged = Call("FlashAttnFunc", q_k_v + flags("0.", "0.125", "True"))
    full = 2 * 2 * 4 * 16 * 16 * 16
    assert flops(flagged) == full / 2
    assert [flops(Call("FlashAttnFunc", q_k_v, mask=mask)) for mask in ("full", "causal", "local", None)] == [
        full,
        full / 2,
        None,
        None,
    ]
    assert [at_most(Call("FlashAttnFunc", q_k_v, mask=mask)) for mask in ("full", "local", None)] == [None, full, full]
    node = Call("FlashAttnFuncBackward", arguments((2, 16, 4, 8)), partner=flagged)
    assert work_of(node) == Work(full, Volume(2.0 * 8 * 1024), "bf16")


def test_transformer_engines_cudnn_attention_has_bytes_alone() -> None:
    """Its mask and layout are texts, which the profiler leaves out."""
    lengths = arguments((3,), (3,), dtype="int")
    call = Call("FusedAttnFunc", flags("True", "16", "16") + lengths + arguments(*[(16, 2, 4, 8)] * 3))
    assert work_of(call) == Work(None, Volume(2.0 * 4 * 1024), "bf16")


def test_grouped_queries_count_all_heads_and_read_few_keys() -> None:
    call = Call(
        "aten::_scaled_dot_product_flash_attention",
        arguments((2, 8, 16, 4), (2, 2, 16, 4), (2, 2, 16, 4)) + flags("0.", "True"),
    )
    assert work_of(call) == Work(2 * 2 * 8 * (16 * 16 / 2) * 8, Volume(2.0 * (2 * 1024 + 2 * 256)), "bf16")


def arguments(*shapes: tuple[int, ...], dtype: str = BF16) -> tuple[Any, ...]:
    call = parse("", json.dumps(shapes), json.dumps([dtype] * len(shapes)), None)
    assert call is not None
    return call.arguments


def flags(*concrete: str) -> tuple[Any, ...]:
    call = parse("", json.dumps([[]] * len(concrete)), json.dumps(["Scalar"] * len(concrete)), json.dumps(concrete))
    assert call is not None
    return call.arguments


def flash3(tokens: int, sequences: int, longest: int, window: int) -> Call:
    """A packed `flash_attn_3::fwd`: 4 heads of 8, causal."""
    packed = arguments(*[(tokens, 4, 8)] * 3)
    empty = flags("")
    lengths = arguments((sequences + 1,), (sequences + 1,), dtype="int")
    between = flags(str(longest), str(longest), *[""] * 9, "0.1", "True", str(window), "0")
    return Call("flash_attn_3::fwd", packed + empty * 4 + lengths + empty * 3 + between)


def test_packed_sequences_count_where_all_are_equally_long() -> None:
    assert flops(flash3(tokens=48, sequences=3, longest=16, window=-1)) == 2 * 3 * 4 * (16 * 16 / 2) * 16
    assert flops(flash3(tokens=47, sequences=3, longest=16, window=-1)) is None


def at_most(call: Call) -> float | None:
    work = work_of(call)
    return work.most if work else None


def test_packed_sequences_of_unknown_lengths_count_at_most_those_of_the_longest() -> None:
    # two of 16 and one of 8 tokens, each seeing 4 back
    expected = 2 * 4 * 16 * (2 * (16 * 4 - 8) + (8 * 4 - 8))
    assert at_most(flash3(tokens=40, sequences=9, longest=16, window=4)) == expected
    assert at_most(flash3(tokens=48, sequences=3, longest=16, window=-1)) is None


@given(st.lists(st.integers(1, 16), min_size=1, max_size=8), st.integers(0, 20))
def test_no_lengths_exceed_the_bound(parts: list[int], window: int) -> None:
    areas = [attention.attended_area(part, part, window, 0) for part in parts]
    bound = at_most(flash3(tokens=sum(parts), sequences=len(parts), longest=16, window=window))
    if bound is not None:
        assert 2 * 4 * 16 * sum(areas) <= bound * (1 + 1e-12)


def test_a_window_counts_only_what_it_shows() -> None:
    # 16 positions see at most 4 back: 16 * 4 - 4 * 4 / 2 pairs
    assert flops(flash3(tokens=16, sequences=1, longest=16, window=4)) == 2 * 4 * (16 * 4 - 8) * 16


def test_an_unknown_mask_means_unknown_flops_but_known_bytes() -> None:
    call = Call("aten::_scaled_dot_product_flash_attention", arguments(*[(1, 2, 4, 8)] * 3))
    assert work_of(call) == Work(None, Volume(2.0 * 4 * 64), "bf16", most=2 * 2 * 4 * 4 * 16)


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.one_of(st.none(), st.integers(0, 50)),
    st.one_of(st.none(), st.integers(0, 50)),
)
def test_the_attended_area_is_that_of_the_pairs(query: int, key: int, left: int | None, right: int | None) -> None:
    """A pair is a unit square; the area differs from the count of pairs by at most half a square for each row and edge."""
    offset = key - query
    pairs = sum(
        (left is None or j >= i + offset - left) and (right is None or j <= i + offset + right)
        for i in range(query)
        for j in range(key)
    )
    assert abs(attention.attended_area(query, key, left, right) - pairs) <= query


def test_grouped_matmuls() -> None:
    offsets = arguments((4,), dtype="int")
    by_rows = Call("aten::_grouped_mm", arguments((32, 8), (4, 8, 6)) + offsets)
    by_inner = Call("aten::_grouped_mm", arguments((6, 32), (32, 8)) + offsets)
    batched = Call("aten::_grouped_mm", arguments((4, 5, 8), (4, 8, 6)))
    assert work_of(by_rows) == Work(2 * 32 * 8 * 6, Volume(2.0 * (256 + 192 + 192)), "bf16")
    assert work_of(by_inner) == Work(2 * 6 * 32 * 8, Volume(2.0 * (192 + 256 + 4 * 48)), "bf16")
    assert work_of(batched) == Work(2 * 4 * 5 * 8 * 6, Volume(2.0 * (160 + 192 + 120)), "bf16")


def test_int4_weights_know_their_columns_by_their_scales() -> None:
    packed = parse(
        "aten::_weight_int4pack_mm",
        "[[3, 64], [2, 4, 32, 4], [], [2, 16, 2]]",
        json.dumps([BF16, "int", "Scalar", BF16]),
        '["", "", "32", ""]',
    )
    assert packed is not None
    assert work_of(packed) == Work(2 * 3 * 64 * 16, Volume(2.0 * 192 + 4.0 * 1024 + 2.0 * 64 + 2.0 * 48), "bf16")


def test_fp4_packs_two_values_of_the_inner_dimension() -> None:
    call = Call(
        "aten::_scaled_mm", arguments((4, 8), (8, 6), dtype="c10::Float4_e2m1fn_x2") + flags("", "", "", "", "15")
    )
    assert work_of(call) == Work(2 * 4 * 16 * 6, Volume(32.0 + 48.0 + 2.0 * 24), "fp4")


def test_narrow_products_write_their_own_dtype() -> None:
    fp8 = "c10::Float8_e4m3fn"
    inputs, wide = arguments((4, 8), (8, 6), dtype=fp8), arguments((4, 6))
    scales = flags("", "")
    calls = [
        Call("_C::cutlass_scaled_mm", wide + inputs),
        Call("sgl_kernel::fp8_scaled_mm", inputs + scales + flags("15")),
        Call("fbgemm::f8f8bf16_rowwise", arguments((4, 8), (6, 8), dtype=fp8)),
        Call("aiter::gemm_a8w8_ck", arguments((4, 8), (6, 8), dtype=fp8) + scales + wide),
    ]
    assert [work_of(call) for call in calls] == [Work(2 * 4 * 8 * 6, Volume(32.0 + 48.0 + 2.0 * 24), "fp8")] * 4
    integers = Call("aten::_int_mm", arguments((4, 8), (8, 6), dtype="signed char"))
    assert work_of(integers) == Work(2 * 4 * 8 * 6, Volume(32.0 + 48.0 + 4.0 * 24), "int8")


def test_another_schema_of_the_same_name_is_unknown_not_misread() -> None:
    """Other packages register flash_attn_3::_flash_attn_forward too; a number where the flag should be is no flag."""
    short = Call("flash_attn_3::_flash_attn_forward", arguments(*[(1, 16, 4, 8)] * 3))
    shifted = Call("flash_attn_3::fwd", arguments(*[(1, 16, 4, 8)] * 3) + flags(*[""] * 21, "1", "-1", "-1"))
    assert (flops(short), flops(shifted)) == (None, None)


def test_triton_templates_multiply_three_matrices_in_any_layout() -> None:
    fits = Call("triton_tem_fused_mm_3", arguments((4, 8), (6, 8), (4, 6)) + flags("1"))
    assert work_of(fits) == Work(2 * 4 * 8 * 6, Volume(2.0 * (32 + 48 + 24)), "bf16")
    epilogue = Call("triton_tem_fused__to_copy_addmm_relu_3", arguments((6,), (4, 8), (6, 8), (4, 6), (2, 2, 6)))
    assert work_of(epilogue) == Work(2 * 4 * 8 * 6, Volume(2.0 * (6 + 32 + 48 + 24 + 24)), "bf16")


def test_templates_take_buffers_as_they_are_stored() -> None:
    """The matmul sees views: here of a batch of two sequences, whose heads a view splits."""
    assert (
        flops(Call("triton_tem_fused_mm_t_view_1", arguments((2, 16, 24), (40, 24), (2, 16, 5, 8)))) == 2 * 32 * 24 * 40
    )
    stored = Call("triton_tem_fused_bmm_6", arguments((3, 4, 10, 8), (3, 4, 14, 8), (12, 10, 14)))
    assert flops(stored) == 2 * 12 * 10 * 14 * 8
    assert (
        flops(Call("triton_tem_fused_baddbmm_6", arguments((3, 10, 8), (3, 8, 14), (3, 10, 14), (3, 10, 14))))
        == 2 * 3 * 10 * 14 * 8
    )


def test_templates_of_another_shape_stay_unknown() -> None:
    assert work_of(Call("triton_tem_fused_mm_3", arguments((4, 8), (6, 9), (4, 6)))) is None
    assert work_of(Call("triton_tem_fused_mm_3", arguments((4, 8), (6, 8)))) is None
    assert operators.formula_of("triton_tem_fused_mm_plus_mm_3") is None


@pytest.mark.parametrize("batched", [False, True])
def test_templates_count_as_torch_counts_what_they_replace(batched: bool, tmp_path: Path) -> None:
    name = "aten::bmm" if batched else "aten::mm"
    call, expected = recorded(MATMULS[name], name, tmp_path)
    result = (2, 3, 7) if batched else (3, 7)
    inputs = [argument.shape or () for argument in call.arguments[:2]]
    assert flops(Call(f"triton_tem_fused_{name[6:]}_0", arguments(*inputs, result))) == expected > 0


def test_convolution_templates_count_as_torch_counts(tmp_path: Path) -> None:
    call, expected = recorded(CONVOLUTIONS["2d"], "aten::convolution", tmp_path)
    result = tuple(CONVOLUTIONS["2d"]().shape)
    inputs = [argument.shape or () for argument in call.arguments[:2]]
    assert flops(Call("triton_tem_fused_convolution_0", arguments(*inputs, (6,), result))) == expected > 0
    assert work_of(Call("triton_tem_fused_convolution_backward_0", arguments(*inputs, (6,), result))) is None


def test_grouped_templates_count_every_row_once() -> None:
    grouped = Call(
        "triton_tem_fused__grouped_mm_2",
        arguments((32, 8), (4, 6, 8)) + arguments((4,), dtype="int") + arguments((32, 6)),
    )
    assert work_of(grouped) == Work(2 * 32 * 8 * 6, Volume(2.0 * (256 + 192 + 192)), "bf16")


def flex(name: str, table: tuple[int, ...]) -> Call:
    """q, k, v, the statistics and the table of blocks, then the result."""
    statistics = arguments((2, 4, 16), dtype="float")
    blocks = arguments(table[:3], table, dtype="int")
    return Call(name, arguments(*[(2, 4, 16, 8)] * 3) + statistics + blocks + arguments((2, 4, 16, 8)))


def test_flex_attention_counts_where_no_block_is_masked_out(tmp_path: Path) -> None:
    name = "aten::_scaled_dot_product_flash_attention"
    _, expected = recorded(lambda: FORWARD[name](False), name, tmp_path)
    moved = Volume(2.0 * 4 * 1024)
    assert work_of(flex("triton_tem_fused_flex_attention_0", (1, 1, 1, 1))) == Work(expected, moved, "bf16")
    assert work_of(flex("triton_tem_fused_flex_attention_0", (1, 1, 2, 2))) == Work(None, moved, "bf16", most=expected)
    backward = flex("triton_tem_fused_zeros_flex_attention_backward_1", (1, 1, 1, 1))
    assert work_of(backward) == Work(2.0 * expected, Volume(2.0 * 8 * 1024), "bf16")


def test_an_unknown_op_counts_where_its_tensors_are_one_matmul_only() -> None:
    linear = Call("mylib::linear", arguments((2, 16, 8), (6, 8), (6,)))
    assert matmul.only(linear) == Work(2 * 32 * 8 * 6, Volume(2.0 * (256 + 48)), "bf16")
    into = Call("mylib::mm", arguments((4, 6), dtype="float") + arguments((4, 8), (8, 6), dtype="c10::Float8_e4m3fn"))
    assert matmul.only(into) == Work(2 * 4 * 8 * 6, Volume(4.0 * 24 + 32 + 48), "fp8")
    assert matmul.only(Call("mylib::bmm", arguments((3, 4, 8), (3, 8, 6)))) == Work(
        2 * 3 * 4 * 8 * 6, Volume(2.0 * (96 + 144)), "bf16"
    )
    scaled = arguments((128, 512), (256, 512)) + arguments((128, 4), (2, 4), dtype="float") + arguments((128, 256))
    work = matmul.only(Call("mylib::scaled", scaled))
    assert work is not None and work.flops == 2 * 128 * 512 * 256


@pytest.mark.parametrize(
    "shapes",
    [
        [(4, 8)],
        [(4, 8), (9, 6)],
        [(4, 8), (4, 8)],  # over rows or columns
        [(4, 8), (8, 6), (8, 7)],  # two weights
        [(2, 4, 16, 8)] * 3,  # attention
        [(3, 4, 8), (2, 8, 6)],  # other batches
    ],
)
def test_an_unknown_op_that_reads_otherwise_too_stays_unknown(shapes: list[tuple[int, ...]]) -> None:
    assert matmul.only(Call("mylib::op", arguments(*shapes))) is None


@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple), max_size=6))
def test_the_reading_of_unknown_tensors_does_not_hang_on_their_order(shapes: list[tuple[int, ...]]) -> None:
    given_order = Call("mylib::op", tuple(Argument(shape, BF16) for shape in shapes))
    reverse = given_order._replace(arguments=given_order.arguments[::-1])
    assert matmul.only(given_order) == matmul.only(reverse)


def function(name: str, forward: tuple[Any, ...], gradient: tuple[int, ...]) -> tuple[float | None, float | None]:
    """FLOPs of an autograd function and of its backward node, each told of the other."""
    told = Call(name, forward, partner=Call("", arguments(gradient)))
    node = Call(f"{name}Backward", arguments(gradient), partner=Call("", forward))
    return flops(told), flops(node)


def test_transformer_engines_layers_count_as_torch_counts_linear(tmp_path: Path) -> None:
    """4 x 3 tokens of 5 features become 7; with an MLP (gated: 14, of which 7 remain) 5 again."""
    call, expected = recorded(MATMULS["aten::linear"], "aten::linear", tmp_path)
    tokens, weight = (argument.shape or () for argument in call.arguments[:2])
    norm = arguments((5,), (5,))
    assert function("_Linear", arguments(weight, tokens, (7,)), (4, 3, 7)) == (expected, 2 * expected)
    assert function("_LayerNormLinear", arguments(tokens) + norm + arguments(weight, (7,)), (4, 3, 7)) == (
        expected,
        2 * expected,
    )
    plain = arguments(tokens) + norm + arguments((7, 5), (7,)) + flags("True") + arguments((5, 7), (5,))
    gated = arguments(tokens) + norm + arguments((14, 5), (14,), (5, 7), (5,))
    assert function("_LayerNormMLP", plain, (4, 3, 5)) == (2 * expected, 4 * expected)
    assert function("_LayerNormMLP", gated, (4, 3, 5)) == (3 * expected, 6 * expected)


def test_experts_weights_share_the_rows() -> None:
    """Three experts of 5 to 7 features: each of twelve rows goes through one of them, but all three are read."""
    inputs = arguments((12, 5)) + flags("True") + arguments((7, 5), (7, 5), (7, 5), (7,), (7,), (7,))
    assert function("_GroupedLinear", inputs, (12, 7)) == (2 * 12 * 35, 4 * 12 * 35)
    work = work_of(Call("_GroupedLinear", inputs))
    assert work is not None
    assert work.moved == Volume(2.0 * (60 + 3 * 35 + 84))


def test_a_slice_of_the_sequence_is_gathered_before_the_layer() -> None:
    """Sequence parallelism: two of eight tokens come in, the gradient of all eight comes back."""
    norm = arguments((5,), (5,))
    assert function("_LayerNormLinear", arguments((2, 1, 5)) + norm + arguments((7, 5)), (8, 1, 7)) == (
        2 * 8 * 35,
        4 * 8 * 35,
    )
    assert function("_Linear", arguments((7, 5), (8, 1, 5)), (2, 1, 7)) == (2 * 8 * 35, 4 * 8 * 35)


def test_transformer_engines_gemm_op_takes_matrices_in_any_layout() -> None:
    a, b, d = (arguments(shape) for shape in ((6, 8), (4, 8), (4, 6)))
    scale, index = arguments((3,), dtype="float"), flags("0", "0", "True")
    call = Call("tex_ts::te_gemm_ts", a + scale + index + b + scale + index[:2] + flags("False") + d)
    assert work_of(call) == Work(2 * 4 * 8 * 6, Volume(2.0 * (48 + 32 + 24)), "bf16")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_count_as_torch_counts_their_matmuls(kind: str) -> None:
    """Without cuDNN torch runs a matmul of the input and one of the state for each step."""
    from torch.utils.flop_counter import FlopCounterMode

    layer = getattr(torch.nn, kind)(5, 6, num_layers=2, bidirectional=True).double()  # no oneDNN in fp64
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.randn(9, 3, 5).double())
    weights = [list(parameter.shape) for parameter in layer.parameters()]
    texts = ([[9, 3, 5], weights, []], ["float", "TensorList", ""])
    call = parse("aten::_cudnn_rnn", *(json.dumps(text) for text in texts), None)
    assert call is not None
    assert flops(call) == counter.get_total_flops() > 0
    assert flops(call._replace(name="aten::_cudnn_rnn_backward")) == 2 * counter.get_total_flops()


def test_experts_count_for_each_token_those_it_was_sent_to() -> None:
    layer = (
        arguments((10, 8), (4, 12, 8), (4, 8, 6)) + arguments((10, 2), dtype="float") + arguments((10, 2), dtype="int")
    )
    work = work_of(Call("vllm::outplace_fused_experts", layer))
    assert work == Work(2 * 10 * 2 * (96 + 48), Volume(2.0 * (80 + 384 + 192 + 80)), "bf16")


def test_a_product_with_its_own_transpose_needs_one_triangle() -> None:
    gram = Call("XXT_kernel_0", arguments((2, 4, 8), (2, 4, 4)) + flags("4", "8"))
    assert work_of(gram) == Work(2 * 8 * 4 * 5, Volume(2.0 * (64 + 32)), "bf16")
    assert work_of(Call("ba_plus_cAA_kernel", arguments((6, 6), (6, 6)))) == Work(6 * 6 * 7, Volume(2.0 * 72), "bf16")
    assert work_of(Call("XXT_kernel", arguments((4, 8), (8, 8)))) is None


def test_shapes_that_do_not_fit_have_no_work() -> None:
    assert work_of(Call("aten::mm", arguments((3, 5), (6, 7)))) is None
    assert work_of(Call("aten::add", arguments((3, 5), (4, 5)))) is None
    assert work_of(Call("aten::convolution", arguments((1, 3, 8, 8), (4, 3, 3, 3)))) is None


def test_a_convolution_without_geometry_learns_it_from_its_backward() -> None:
    data, weight, grad = (2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 5, 5)
    forward = Call("aten::cudnn_convolution", arguments(data, weight, dtype="float"))
    backward = Call("aten::cudnn_convolution_backward", arguments(data, grad, weight, dtype="float"))
    told, _ = convolution.complete([forward, backward], [None, None])
    assert flops(told) == 2 * 2 * 25 * 4 * 3 * 9
    other = backward._replace(arguments=arguments(data, (2, 4, 9, 9), weight, dtype="float"))
    told, *_ = convolution.complete([forward, backward, other], [None] * 3)
    assert flops(told) is None


def test_gradients_of_old_convolutions() -> None:
    data, weight, grad = (2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 5, 5)
    around = Call("aten::cudnn_convolution_backward", arguments(data, grad, weight, dtype="float"))
    to_data = Call("aten::cudnn_convolution_backward_input", flags("") + arguments(grad, weight, dtype="float"))
    to_weight = Call("aten::cudnn_convolution_backward_weight", flags("") + arguments(grad, data, dtype="float"))
    told = convolution.complete([to_data, to_weight], [around, around])
    one = 2.0 * 2 * 25 * 4 * 3 * 9
    assert [work_of(call) for call in told] == [Work(one, Volume(4.0 * (200 + 108 + 486)), "fp32")] * 2
    assert [work_of(call) for call in convolution.complete([to_data, to_weight], [None, None])] == [None, None]


MOVED: list[tuple[str, list[Any], list[str], list[str], float]] = [
    ("aten::add", [[8, 4], [4], []], [BF16, "float", "Scalar"], ["", "", "1"], 2 * 32 + 4 * 4 + 4 * 32),
    ("aten::add_", [[8, 4], [8, 4], []], [BF16, "float", "Scalar"], ["", "", "1"], 2 * 32 + 4 * 32 + 2 * 32),
    ("aten::mul", [[8, 4], []], [BF16, "double"], ["", ""], 2 * 32 + 8 + 2 * 32),
    ("aten::eq", [[8, 4], []], ["float", "Scalar"], ["", "0"], 4 * 32 + 32),
    ("aten::where", [[8, 4], [4], [8, 1]], ["bool", "float", "float"], ["", "", ""], 32 + 16 + 32 + 4 * 32),
    ("aten::gelu", [[8, 4], []], [BF16, ""], ["", "none"], 2 * 64),
    ("aten::copy_", [[8, 4], [4], []], ["float", BF16, "Scalar"], ["", "", "False"], 4 * 32 + 2 * 4),
    ("aten::_to_copy", [[8, 4], [], []], ["float", "Scalar", ""], ["", "15", ""], 4 * 32 + 2 * 32),
    ("aten::fill_", [[8, 4], []], ["float", "Scalar"], ["", "0"], 4 * 32),
    ("aten::zero_", [[8, 4]], ["float"], [""], 4 * 32),
    (
        "aten::sum",
        [[8, 4], [], [], []],
        ["float", "ScalarList", "Scalar", ""],
        ["", "[0]", "False", ""],
        4 * 32 + 4 * 4,
    ),
    ("aten::sum", [[8, 4], []], ["float", "Scalar"], ["", "6"], 4 * 32 + 4),
    ("aten::max", [[8, 4], [], []], ["float", "Scalar", "Scalar"], ["", "-1", "False"], 4 * 32 + 8 * (4 + 8)),
    (
        "aten::native_layer_norm",
        [[8, 4], [], [4], [4], []],
        [BF16, "ScalarList", BF16, BF16, "Scalar"],
        [""] * 5,
        2 * (32 + 8 + 32) + 8 * (4 + 4),  # and a float mean and deviation for each of 8 rows
    ),
    ("aten::_softmax", [[8, 4], [], []], [BF16, "Scalar", "Scalar"], ["", "-1", "False"], 2 * 64),
    ("aten::native_dropout", [[8, 4], [], []], [BF16, "Scalar", "Scalar"], ["", "0.1", "True"], 2 * 64 + 32),
    (
        "aten::embedding",
        [[100, 4], [3, 2], [], [], []],
        [BF16, "long int", "Scalar", "Scalar", "Scalar"],
        [""] * 5,
        8 * 6 + 2 * 2 * 24,
    ),
    (
        "aten::embedding_dense_backward",
        [[6, 4], [6], []],
        ["float", "long int", "Scalar"],
        ["", "", "100"],
        96 + 48 + 1600,
    ),
    ("aten::gather", [[9], [], [5], []], ["float", "Scalar", "long", "Scalar"], ["", "0", "", ""], 8 * 5 + 2 * 4 * 5),
    ("aten::index_select", [[9, 3], [], [5]], ["float", "Scalar", "long"], ["", "0", ""], 8 * 5 + 2 * 4 * 15),
    ("aten::repeat", [[8, 1], []], ["float", "ScalarList"], ["", "[1, 4]"], 4 * 8 + 4 * 32),
    ("aten::topk", [[8, 4], [], []], ["float", "Scalar", "Scalar"], ["", "2", "-1"], 4 * 32 + 16 * 12),
    (
        "aten::upsample_bilinear2d",
        [[1, 3, 2, 2], [], []],
        ["float", "ScalarList", "Scalar"],
        ["", "[4, 4]", "False"],
        4 * 12 + 4 * 48,
    ),
    (
        "aten::max_pool2d_with_indices",
        [[1, 2, 8, 8], [], [], [], [], []],
        ["float", *["ScalarList"] * 4, "Scalar"],
        ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"],
        4 * 128 + 12 * 32,
    ),
    ("triton_poi_fused_add_0", [[8, 4], [8, 4], []], [BF16, "float", "Scalar"], ["", "", "32"], 2 * 32 + 4 * 32),
    (
        "triton_poi_fused_embedding_0",
        [[6], [100, 4], [6, 4], []],
        ["int", BF16, BF16, "Scalar"],
        ["", "", "", "24"],
        24 + 48 + 48,
    ),
]


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "expected"), MOVED, ids=[f"{row[0]}-{row[1]}" for row in MOVED]
)
def test_bytes_are_inputs_read_once_and_outputs_written_once(
    name: str, dims: list[Any], types: list[str], concrete: list[str], expected: float
) -> None:
    call = parse(name, json.dumps(dims), json.dumps(types), json.dumps(concrete))
    assert call is not None
    work = work_of(call)
    assert work is not None
    assert (work.flops, work.moved) == (None, Volume(float(expected)))


LISTS = [[[4, 2], [3]]]
ELEMENTS: list[tuple[str, int, int, float]] = [
    ("aten::_foreach_add_", 2, 1, 11 * 3),
    ("aten::_foreach_addcdiv_", 3, 1, 11 * 4),
    ("aten::_foreach_copy_", 2, 0, 11 * 2),
    ("aten::_foreach_zero_", 1, 0, 11),
    ("aten::_fused_adamw_", 4, 0, 11 * 7),
    ("aten::_fused_sgd_", 3, 0, 11 * 5),
    ("aten::cat", 1, 1, 11 * 2),
]


@pytest.mark.parametrize(("name", "lists", "scalars", "expected"), ELEMENTS)
def test_lists_of_tensors_have_elements_but_no_dtype(name: str, lists: int, scalars: int, expected: float) -> None:
    call = parse(
        name,
        json.dumps(LISTS * lists + [[]] * scalars),
        json.dumps(["TensorList"] * lists + ["Scalar"] * scalars),
        None,
    )
    assert call is not None
    work = work_of(call)
    assert work is not None
    assert work.moved == Volume(0.0, float(expected))


def test_lists_that_the_profiler_left_out_are_unknown() -> None:
    call = parse("aten::_foreach_add_", "[[], [], []]", '["TensorList", "TensorList", "Scalar"]', None)
    assert call is not None
    assert work_of(call) is None


def test_every_torch_op_stands_where_its_schema_says() -> None:
    """Positions in formulas.toml are those of torch's own schemas, by the argument's name."""
    meaning = {
        "causal": {"is_causal"},
        "bias": {"bias", "attn_bias", "attn_mask"},
        "stride": {"stride"},
        "padding": {"padding"},
        "dilation": {"dilation"},
        "transposed": {"transposed"},
        "output_padding": {"output_padding"},
        "groups": {"groups"},
        "output_mask": {"output_mask"},
        "added": {"self"},
        "a": {"self", "mat1", "batch1", "mat"},
        "b": {"mat2", "batch2", "vec", "weight"},
        "q": {"query"},
        "out_dtype": {"out_dtype"},
        "window": {"window_size_left", "window_size"},
        "lengths": {"cum_seq_q", "cu_seqlens_q"},
    }
    checked, wrong = 0, []
    by_name, _ = operators.formulas()
    for name, formula in by_name.items():
        schemas = torch._C._jit_get_schemas_for_operator(name) if name.startswith("aten::") else []
        known = {key: value for key, value in getattr(formula, "keywords", {}).items() if key in meaning}
        for key, value in known.items():
            position = value[0] if isinstance(value, list) else value
            names = {
                schema.arguments[position].name
                for schema in schemas
                if key in meaning and position < len(schema.arguments)
            }
            checked += bool(names)
            if names and not names & meaning[key]:
                wrong.append((name, key, position, names))
    assert checked > 60
    assert wrong == []


def test_the_table_names_ops_that_exist_or_did_in_older_torch() -> None:
    of_older_torch = {"aten::_cat", "aten::l1_loss_backward"}
    of_older_torch |= {
        name for name in operators.formulas()[0] if re.match("aten::(cudnn|miopen)_convolution_backward", name)
    }
    names = {name for name in operators.formulas()[0] if name.startswith("aten::")}
    gone = {name for name in names if not any(map(torch._C._jit_get_schemas_for_operator, (name, f"{name}_")))}
    assert gone == of_older_torch


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(
    st.sampled_from(sorted(operators.formulas()[0])),
    st.lists(JSON, max_size=14),
    st.lists(JSON, max_size=14),
    st.lists(JSON, max_size=14),
)
def test_no_input_breaks_a_formula(name: str, dims: list[Any], types: list[Any], concrete: list[Any]) -> None:
    call = parse(name, json.dumps(dims), json.dumps(types), json.dumps(concrete))
    work = work_of(call) if call else None
    assert work is None or work.flops is None or work.flops >= 0


@given(
    st.sampled_from(sorted(operators.formulas()[0])),
    st.lists(st.lists(st.integers(0, 1 << 41), max_size=5), min_size=1, max_size=20),
    st.lists(
        st.sampled_from(["True", "False", "", "-1", "0", "3", "[2, 2]", "[0]", "[-7, 9]", "15", "1e9", "[" * 99]),
        max_size=20,
    ),
)
def test_no_sizes_break_a_formula(name: str, dims: list[list[int]], concrete: list[str]) -> None:
    call = parse(name, json.dumps(dims), json.dumps(["float"] * len(dims)), json.dumps(concrete))
    work = work_of(call) if call else None
    assert work is None or (work.moved.known_bytes >= 0 and (work.flops is None or work.flops >= 0))


def test_promotion_ignores_scalars_of_the_same_kind() -> None:
    work = memory_ops.elementwise(Call("aten::mul", arguments((4,)) + arguments((), dtype="double")), inputs=2)
    assert work == Work(None, Volume(8.0 + 8.0 + 8.0), "bf16")
