"""The roofline of a kernel: at 1 TFLOP/s and 1 GB/s a microsecond holds a million FLOPs or a thousand bytes."""

from __future__ import annotations

import polars as pl
import pytest

from trace_doctor.classifiers import roofline

PEAK, BANDWIDTH = 1e12, 1e9


def kernels(*rows: tuple[bool, float | None, float | None, float]) -> pl.DataFrame:
    """Kernels of `(tensor, flops, bytes_moved, exclusive_ns)`, whole inside the window."""
    schema = {"tensor": pl.Boolean, "flops": pl.Float64, "bytes_moved": pl.Float64, "exclusive_ns": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_columns(kernel_peak_flops=pl.lit(PEAK), part=pl.lit(1.0))


def roofs(frame: pl.DataFrame, *, best_share: float | None = None) -> pl.DataFrame:
    return roofline.roofs(frame, memory_bandwidth=BANDWIDTH, best_share=best_share)


def test_the_roof_is_the_later_of_work_and_traffic() -> None:
    found = roofs(kernels((True, 2e6, 1e3, 0), (True, 1e6, 3e3, 0), (False, None, 500.0, 0)))
    assert found["roof_ns"].round(6).to_list() == [2000, 3000, 500]


def test_a_tensor_kernel_without_flops_has_no_roof_and_another_without_bytes_neither() -> None:
    assert roofs(kernels((True, None, 1e3, 0), (False, None, None, 0)))["roof_ns"].to_list() == [None, None]


def test_half_of_the_device_is_known_where_its_bandwidth_is_not() -> None:
    found = roofline.roofs(kernels((True, 2e6, 1e3, 0)), memory_bandwidth=None, best_share=None)
    assert found.select("compute_ns", "memory_ns", "roof_ns", "best_ns").rows() == [(2000, None, 2000, None)]


def test_the_best_matmul_raises_the_roof_of_work_but_not_of_traffic() -> None:
    found = roofs(kernels((True, 2e6, 1e3, 0), (True, 2e6, 3e3, 0), (False, None, 1e3, 0)), best_share=0.8)
    assert found["best_ns"].round(6).to_list() == [2500, 3000, 1000]


@pytest.mark.parametrize(
    ("compute_ns", "memory_ns", "best_ns", "known_ns", "median_ns", "expected"),
    [
        (900.0, 100.0, None, 1000.0, 1e5, "compute"),
        (100.0, 600.0, None, 1000.0, 1e5, "memory"),
        (100.0, 599.0, None, 1000.0, 1e5, "neither"),
        (500.0, 100.0, 600.0, 1000.0, 1e5, "compute"),
        (100.0, 100.0, None, 1000.0, 4000.0, "latency"),
        (100.0, 100.0, None, 1000.0, 4001.0, "neither"),
        (None, 700.0, 700.0, 1000.0, 1e5, "memory"),
        (None, None, None, 1000.0, 1000.0, None),
    ],
)
def test_a_roof_holds_what_comes_near_it(
    compute_ns: float | None,
    memory_ns: float | None,
    best_ns: float | None,
    known_ns: float,
    median_ns: float,
    expected: str | None,
) -> None:
    known = [value for value in (compute_ns, memory_ns) if value is not None]
    values = [compute_ns, memory_ns, max(known, default=None), best_ns, known_ns, median_ns]
    names = ["compute_ns", "memory_ns", "roof_ns", "best_ns", "known_ns", "median_ns"]
    frame = pl.DataFrame({name: [value] for name, value in zip(names, values, strict=True)}).cast(pl.Float64)
    assert frame.select(roofline.bound(floor_ns=2000.0)).item() == expected


def test_physics_keeps_what_the_best_matmul_loses_too() -> None:
    # at 80 % a kernel of 1000 ns needs 1250: one that took 2000 keeps 250, one that took 1100 keeps 100, an ideal one nothing
    frame = kernels((True, 1e6, 0.0, 2000.0), (True, 1e6, 0.0, 1100.0), (True, 1e6, 0.0, 1000.0))
    tensor = roofs(frame, best_share=0.8).with_columns(ideal_ns=pl.lit(1000.0))
    assert roofline.kept_by_physics(tensor) == 250 + 100
