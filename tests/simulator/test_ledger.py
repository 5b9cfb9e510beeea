"""The simulator's own account: agrees with numbers worked out by hand, and sums to the window."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator import Run, ledger
from tests.simulator.programs import ACTIONS, CASES, any_steps, simulated
from tests.simulator.samples import SAMPLES


@pytest.mark.parametrize("name", CASES)
def test_account_agrees_with_hand(name: str) -> None:
    known = ledger.of(simulated(name))
    expected = CASES[name].rows
    assert ledger.near({row: known.get(row, 0) for row in expected}, expected) == expected


@pytest.mark.parametrize("name", SAMPLES)
def test_account_of_a_sample_sums_to_its_window(name: str) -> None:
    assert_sums(SAMPLES[name]())


@settings(max_examples=200)
@given(st.lists(st.lists(st.sampled_from(ACTIONS), max_size=20), min_size=1, max_size=3))
def test_account_of_any_program_sums_to_its_window(steps: list[list[Callable[[Run], object]]]) -> None:
    assert_sums(any_steps(steps))


def assert_sums(run: Run) -> None:
    rows = ledger.of(run)
    start_ns, end_ns = ledger.used_window(run)
    assert abs(sum(rows.values()) - (end_ns - start_ns)) <= len(rows)
