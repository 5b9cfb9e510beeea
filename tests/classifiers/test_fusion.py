"""Which neighbours pass a tensor on: by shapes, stream, thread and the kernels between them."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.build import Row, kernel, op, trace
from trace_doctor.classifiers import fusion
from trace_doctor.trace import Trace

A = "[[4, 8], [4, 8], []]"


def chain(*members: tuple[str, str], **more: Any) -> tuple[Trace, pl.DataFrame]:
    """Kernels back to back, each under an op `(name, shapes)` in FP32."""
    rows: list[Row] = []
    for place, (name, shapes) in enumerate(members):
        facts: dict[str, Any] = {"op_row": place, "op_dtype": "fp32", "family": "elementwise", "part": 1.0}
        changes = {key: values[place] for key, values in more.items()}
        rows += [kernel(10 * place, 10, **facts | changes), op(place, 1, name, shapes=shapes)]
    built = trace(*rows)
    return built, built.activities


def saved(*members: tuple[str, str], **more: Any) -> list[tuple[int, float]]:
    built, kernels = chain(*members, **more)
    found = fusion.links(built, kernels, memory_bandwidth=1e6)
    return found.select("activity", "saved_bytes").rows()


def test_both_ends_of_a_link_save_the_tensor_between_them() -> None:
    assert saved(("aten::add", A), ("aten::gelu", "[[4, 8]]")) == [(0, 128.0), (1, 128.0)]


def test_the_middle_of_a_chain_saves_twice() -> None:
    members = [("aten::add", A), ("aten::gelu", "[[4, 8]]"), ("aten::mul", A)]
    assert saved(*members) == [(0, 128.0), (1, 256.0), (2, 128.0)]


def test_a_reduction_passes_its_last_dimension_as_one() -> None:
    assert saved(("aten::mean", "[[4, 8], []]"), ("aten::rsqrt", "[[4, 1]]")) == [(0, 16.0), (1, 16.0)]


@pytest.mark.parametrize(
    ("members", "more"),
    [
        ([("aten::add", A), ("aten::gelu", "[[8, 4]]")], {}),
        ([("aten::add", A), ("triton_poi_fused_gelu_0", "[[4, 8]]")], {}),
        ([("aten::cat", "[[[4, 8]], []]"), ("aten::gelu", "[[4, 8]]")], {}),
        ([("aten::add", A), ("aten::fill_", "[[4, 8], []]")], {}),
        ([("aten::add", A), ("aten::gelu", "not json")], {}),
        ([("aten::add", A), ("aten::gelu", "[[4, 8]]")], {"stream": [7, 8]}),
        ([("aten::add", A), ("aten::gelu", "[[4, 8]]")], {"family": ["elementwise", "gemm"]}),
        ([("aten::add", A), ("aten::gelu", "[[4, 8]]")], {"op_row": [0, 0]}),
    ],
    ids=["shape", "compiled", "list", "fill", "hostile", "stream", "matmul", "one op"],
)
def test_no_link(members: list[tuple[str, str]], more: dict[str, Any]) -> None:
    assert saved(*members, **more) == []


def test_a_tensor_of_unknown_dtype_saves_nothing_known() -> None:
    assert saved(("aten::add", A), ("aten::gelu", "[[4, 8]]"), op_dtype=[None, "fp32"]) == []
