"""Evidence: what is named, and that the trace has it."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.fixes.build import analyses_of, findings, ran
from tests.fixes.examples import EXAMPLES
from tests.fixes.examples.memory_wall import a_sum_at_half_the_bandwidth
from trace_doctor.fixes.finding import contributors, largest
from trace_doctor.report import Evidence

SCHEMA: dict[str, Any] = {
    "name": pl.Categorical, "op": pl.Categorical, "start_ns": pl.Int64, "time_ns": pl.Float64, "is_idle": pl.Boolean,
}  # fmt: skip


def losses(*rows: tuple[str | None, str | None, int, float, bool]) -> pl.DataFrame:
    """Claims of (name, op, start_ns, time_ns, is_idle); each activity lasts twice as long as it loses."""
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(
        number=pl.lit(3, pl.Int64),
        cause=pl.lit("copy").cast(pl.Categorical),
        duration_ns=(2 * pl.col("time_ns")).cast(pl.Int64),
    )


def test_the_largest_contributor_is_a_sum() -> None:
    claims = losses(("a", "op1", 0, 5.0, False), ("b", "op2", 10, 4.0, False), ("b", "op2", 20, 3.0, False))
    assert largest(claims) == {"name": "b", "op": "op2"}
    assert largest(losses(("a", None, 0, 5.0, False))) == {"name": "a", "op": "a"}
    assert largest(losses()) == {"name": "", "op": ""}


def test_contributors_show_their_worst_instance() -> None:
    claims = losses(
        ("k", "op", 10, 3e6, False),
        ("k", "op", 20, 5e6, False),
        (None, None, 30, 4e6, True),
        ("small", None, 40, 1e6, False),
    )
    kernel, idle = contributors(claims, rank=2, window_ns=100_000_000, most=2)
    assert kernel == Evidence(
        kind="activity", name="op / k", rank=2, step=3, start_ns=20, duration_ns=10_000_000, count=2,
        numbers={"total_ms": 8.0, "mfu_points": 8.0},
    )  # fmt: skip
    assert idle == Evidence(
        kind="idle", name="copy", rank=2, step=3, start_ns=30, duration_ns=4_000_000, count=1,
        numbers={"total_ms": 4.0, "mfu_points": 4.0},
    )  # fmt: skip


def test_a_kernel_is_shown_as_long_as_it_is_not_as_long_as_it_loses() -> None:
    found = findings(ran(a_sum_at_half_the_bandwidth))["poor-access-pattern"]
    assert (found.lost_ns, found.evidence[0].duration_ns) == (26_951, 60_000)


@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if example.lost_ns])
def test_the_trace_has_what_the_evidence_shows(name: str) -> None:
    example = EXAMPLES[name]
    run = ran(example.program, example.made)
    (analysis,) = analyses_of(run)
    activities = analysis.trace.activities.select("start_ns", "duration_ns").rows()
    shown = [one for one in findings(run)[example.code].evidence if one.kind == "activity"]
    assert {(one.start_ns, one.duration_ns) for one in shown} <= set(activities)
