from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from trace_doctor.loaders import impossible
from trace_doctor.trace import ACTIVITIES


def activities(*rows: tuple[Any, ...], stream: int = 7) -> pl.DataFrame:
    """From (name, start_us, duration_us, correlation)."""
    columns = ("name", "start_ns", "duration_ns", "correlation")
    frame = pl.DataFrame(list(rows), schema=columns, orient="row", infer_schema_length=None)
    return frame.with_columns(
        pl.col("start_ns", "duration_ns").cast(pl.Int64) * 1000, device=pl.lit(0), stream=pl.lit(stream)
    ).cast({"device": ACTIVITIES["device"].dtype, "name": pl.Categorical, "correlation": pl.Int64})


def kept(frame: pl.DataFrame) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    left, warnings = impossible.remove(frame)
    assert left.columns == frame.columns
    rows = left.select("name", pl.col("start_ns", "duration_ns") // 1000).rows()
    return rows, {warning.code: warning.message for warning in warnings}


def series(count: int, duration: int = 90) -> list[tuple[str, int, int, int]]:
    """Kernels one after another, every 100 us from 1 s on."""
    return [("gemm", 1_000_000 + 100 * i, duration, i) for i in range(count)]


def test_what_is_possible_stays() -> None:
    rows = series(20)
    assert kept(activities(*rows)) == ([row[:3] for row in rows], {})


def test_records_without_times_are_set_aside() -> None:
    rows, warnings = kept(activities(("a", 0, 0, 1), ("b", -5, 3, 2), ("c", None, 1, 3), ("d", 4, None, 4), *series(5)))
    assert rows == [row[:3] for row in series(5)]
    assert warnings == {
        "impossible_timestamps": "GPU activities without a usable timestamp (zero, negative or unreadable) were set aside: 4"
    }


def test_a_clock_that_begins_at_zero_is_believed() -> None:
    rows = [("a", -10, 5, 1), ("b", 0, 5, 2), ("c", 20, 5, 3)]
    assert kept(activities(*rows)) == ([row[:3] for row in rows], {})


def test_negative_durations_are_set_aside_and_zero_ones_stay() -> None:
    rows, warnings = kept(activities(("a", 10, -3, 1), ("b", 20, 0, 2)))
    assert rows == [("b", 20, 0)]
    assert warnings["negative_durations"].endswith(": 1")


def test_exact_repeats_count_once() -> None:
    rows, warnings = kept(
        activities(("a", 10, 3, 1), ("b", 10, 3, 1), ("a", 10, 3, 2), ("a", 10, 3, 1), ("a", 10, 4, 1))
    )
    assert rows == [("a", 10, 3), ("b", 10, 3), ("a", 10, 3), ("a", 10, 4)]
    assert warnings["repeated_records"].endswith(": 1")


def test_a_duration_of_seconds_is_clipped_to_the_next_start() -> None:
    rows = [row if row[3] != 10 else (*row[:2], 2_500_000, 10) for row in series(40)]
    found, warnings = kept(activities(*rows))
    assert found == [row[:3] if row[3] != 10 else (*row[:2], 100) for row in rows]
    assert warnings == {
        "impossible_durations": "GPU activities with impossible durations, running through many later ones of their stream, "
        "were clipped to the next one's start: 1; the longest: gemm on stream 7, 2500.0 ms"
    }


@pytest.mark.parametrize(
    "long",
    [
        [("gemm", 1_001_050, 95, 99)],  # dependent launch: a few us into the next one
        [("ncclAllReduce", 1_000_050 + 1000 * i, 1800, 99 + i) for i in range(3)],  # namesakes last as long
        [("nccl", 1_000_050, 2500, 99), ("small", 1_000_051, 1, 99)],  # nodes of one graph launch
        [("rare", 1_000_050, 900, 99)],  # less than a millisecond
    ],
)
def test_honest_overlap_stays(long: list[tuple[str, int, int, int]]) -> None:
    rows = sorted(series(40) + long, key=lambda row: row[1])
    assert kept(activities(*rows)) == ([row[:3] for row in rows], {})


def test_overlap_of_streams_is_no_overlap() -> None:
    both = pl.concat([activities(*series(40)), activities(("long", 1_000_000, 900_000, 99), stream=8)])
    assert kept(both)[1] == {}


def test_a_long_last_kernel_stays() -> None:
    rows = [*series(20), ("gemm", 1_002_000, 5_000_000, 99)]
    assert kept(activities(*rows)) == ([row[:3] for row in rows], {})


def test_without_correlations() -> None:
    rows = [(*row[:3], None) if row[3] != 10 else (*row[:2], 2_500_000, None) for row in series(40)]
    assert kept(activities(*rows))[0][10] == ("gemm", 1_001_000, 100)


def test_nothing() -> None:
    assert kept(activities().clear()) == ([], {})
