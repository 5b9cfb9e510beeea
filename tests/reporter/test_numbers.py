"""The row of the memory among the numbers."""

from __future__ import annotations

import pytest

from trace_doctor.report import Gpu, Memory, Report
from trace_doctor.reporter.numbers import Number, numbers
from trace_doctor.reporter.text import SPACE, size

FULL = Memory(
    capacity_bytes=80 * 2**30,
    peak_allocated_bytes=60 * 2**30,
    peak_reserved_bytes=72 * 2**30,
    share=0.9,
    basis="measured",
)


def row(memory: Memory | None, gpus: int = 1) -> Number | None:
    found = numbers(Report(memory=memory, gpus=[Gpu()] * gpus))
    return next((one for one in found if one.label == "memory peak"), None)


def test_the_peak_stands_against_the_device() -> None:
    said = "72.0 GiB of 80.0 GiB reserved, 60.0 GiB by tensors".replace(" GiB", f"{SPACE}GiB")
    assert row(FULL) == Number("memory peak", f"90.0{SPACE}%", said, "measured")


def test_of_several_gpus_it_is_the_fullest() -> None:
    found = row(FULL, gpus=8)
    assert found and found.meaning.endswith("by tensors, on the fullest GPU")


@pytest.mark.parametrize(("retries", "said"), [(1, ", 1 allocator retry"), (12, ", 12 allocator retries")])
def test_retries_are_told(retries: int, said: str) -> None:
    found = row(Memory(capacity_bytes=1, peak_reserved_bytes=1, peak_allocated_bytes=1, share=1.0, retries=retries))
    assert found and found.meaning.endswith(said)


@pytest.mark.parametrize("memory", [None, Memory(mallocs=3, capacity_bytes=80 * 2**30)])
def test_nothing_is_said_where_the_peak_is_unknown(memory: Memory | None) -> None:
    assert row(memory) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "unknown"), (0, "0 B"), (1500, "1.46 KiB"), (71.2 * 2**30, "71.2 GiB"), (3 * 2**40, "3.00 TiB")],
)
def test_sizes(value: float | None, said: str) -> None:
    assert size(value) == said.replace(" ", SPACE)
