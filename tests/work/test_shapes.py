"""Reading the profiler's texts."""

from __future__ import annotations

import pytest

from trace_doctor.work.shapes import (
    Argument,
    Volume,
    broadcast,
    element_bytes,
    flag,
    integer,
    integers,
    parse,
    read,
    word,
)


def test_arguments_are_tensors_scalars_and_lists() -> None:
    call = parse("aten::cat", "[[4, 8], [], [[2], [3, 1]]]", '["c10::Half", "Scalar", "TensorList"]', '["", "1", ""]')
    assert call is not None
    assert call.arguments == (
        Argument((4, 8), "c10::Half"),
        Argument(None, "Scalar", "1"),
        Argument(None, "TensorList", "", ((2,), (3, 1))),
    )


def test_a_tensor_without_dimensions_is_one_element() -> None:
    call = parse("aten::mul", "[[], []]", '["double", "Scalar"]', None)
    assert call is not None
    assert read(call, 0, 1, 2) == Volume(8.0)


def test_recordings_without_types_know_tensors_by_their_dimensions() -> None:
    call = parse("aten::mm", "[[2, 3], []]", "[]", None)
    assert call is not None
    assert [argument.shape for argument in call.arguments] == [(2, 3), None]
    assert read(call, 0) == Volume(0.0, 6.0)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "nonsense", "[[-1]]x", '"[]"', "7", "[" * 5000])
def test_texts_that_are_no_shapes_give_no_call(text: str | None) -> None:
    assert parse("aten::mm", text, None, None) is None


@pytest.mark.parametrize("dims", ["[[-1, 2]]", "[[1.5]]", "[[true]]", '[["4"]]', "[null]", "[[4398046511104000]]"])
def test_sizes_that_are_none_give_an_argument_without_shape(dims: str) -> None:
    call = parse("aten::mm", dims, '["float"]', None)
    assert call is not None
    assert call.shape(0) is None


def test_concrete_inputs() -> None:
    assert [integers(Argument(concrete=text)) for text in ("[1, 2]", "3", "-1", "", "1.5", "[]", "True")] == [
        (1, 2),
        (3,),
        (-1,),
        None,
        None,
        None,
        None,
    ]
    assert [integer(Argument(concrete=text)) for text in ("3", "[1, 2]")] == [3, None]
    assert [flag(Argument(concrete=text)) for text in ("True", "False", "1", "0", "")] == [
        True,
        False,
        None,
        None,
        None,
    ]


def test_dtypes_have_widths_and_words() -> None:
    names = ["c10::BFloat16", "float", "long int", "c10::Float8_e4m3fn", "BFloat16", "Scalar"]
    assert [(element_bytes(name), word(name)) for name in names] == [
        (2, "bf16"),
        (4, "fp32"),
        (8, None),
        (1, "fp8"),
        (2, "bf16"),
        (None, None),
    ]


def test_shapes_broadcast_as_in_torch() -> None:
    assert broadcast([(8, 1, 6), (7, 1)]) == (8, 7, 6)
    assert broadcast([(0, 3), (1, 3)]) == (0, 3)
    assert broadcast([(2,), (3,)]) is None
    assert broadcast([]) == ()
