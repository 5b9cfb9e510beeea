"""Simulated steps: what trace_doctor finds in the trace equals the ledger known by construction, cause by cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulator import Run, kineto, ledger
from tests.simulator.programs import ACTIONS, CASES, any_steps, simulated
from tests.simulator.samples import SAMPLES
from trace_doctor import analyze


def found(run: Run, folder: Path) -> ledger.Rounded:
    """The report's ledger; the window must be the simulated one, and the rows must sum to it."""
    report = analyze([kineto.write(run, folder / "trace.json")])
    start_ns, end_ns = ledger.used_window(run)
    rows = {(row.wall, row.cause): row.time_ns for row in report.ledger}
    assert sum(rows.values()) == report.window.duration_ns == end_ns - start_ns
    return {(str(wall), cause): time_ns for (wall, cause), time_ns in rows.items()}


@pytest.mark.parametrize("name", CASES)
def test_ledger_is_the_constructed_one(name: str, tmp_path: Path) -> None:
    run = simulated(name)
    known = ledger.of(run)
    assert ledger.near(found(run, tmp_path), known) == known


@pytest.mark.parametrize("name", SAMPLES)
def test_ledger_of_a_sample_is_the_constructed_one(name: str, tmp_path: Path) -> None:
    run = SAMPLES[name]()
    known = ledger.of(run)
    assert ledger.near(found(run, tmp_path), known) == known


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(ACTIONS), max_size=12), min_size=2, max_size=2))
def test_ledger_of_any_two_steps_is_the_constructed_one(
    tmp_path: Path, steps: list[list[Callable[[Run], object]]]
) -> None:
    run = any_steps(steps)
    known = ledger.of(run)
    assert ledger.near(found(run, tmp_path), known) == known
