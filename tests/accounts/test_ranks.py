"""A slow rank beside the median rank."""

from __future__ import annotations

from trace_doctor.accounts.ranks import explained
from trace_doctor.report import Gpu, LedgerRow, Span, StepDifference, StepTime, Top, Wall

MS = 1_000_000


def row(wall: Wall, cause: str, time_ms: int, name: str | None = None) -> LedgerRow:
    top = [Top(name=name, time_ns=time_ms * MS)] if name else []
    return LedgerRow(wall=wall, cause=cause, time_ns=time_ms * MS, share=0, mfu_points=0, basis="measured", top=top)


def gpu(rank: int, *rows: LedgerRow, steps: int = 2) -> Gpu:
    window_ns = sum(one.time_ns for one in rows)
    return Gpu(
        rank=rank, ledger=list(rows), window=Span(duration_ns=window_ns), step_time_ns=StepTime(mean=window_ns / steps)
    )


def usual(rank: int, own_ms: int = 10) -> Gpu:
    """Two steps of 10 ms: work, and waiting for the slowest."""
    return gpu(rank, row("mfu", "model FLOPs", own_ms), row("communication", "waiting or slow", 20 - own_ms))


LATE = gpu(
    3, row("mfu", "model FLOPs", 10), row("host", "host code", 8, "tokenise"), row("communication", "wire time", 2)
)


def test_the_rank_that_waits_least_is_explained_per_step() -> None:
    found = explained([usual(0), usual(1), usual(2), LATE], slow_ratio=1.1)
    assert [one.median_gpu for one in found] == [None, None, None, 1]
    assert found[3].differences == [
        StepDifference(wall="communication", cause="waiting or slow", time_ns=0, median_ns=5 * MS),
        StepDifference(wall="host", cause="host code", time_ns=4 * MS, median_ns=0, name="tokenise"),
        StepDifference(wall="communication", cause="wire time", time_ns=1 * MS, median_ns=0),
    ]


def test_ranks_that_work_about_as_long_are_not_slow() -> None:
    assert all(not one.differences for one in explained([usual(0), usual(1, 11), usual(2)], slow_ratio=1.1))
    assert explained([usual(0), usual(1, 12), usual(2)], slow_ratio=1.1)[1].median_gpu == 2


def test_two_ranks_have_no_median() -> None:
    assert explained([usual(0), LATE], slow_ratio=1.1) == [usual(0), LATE]
