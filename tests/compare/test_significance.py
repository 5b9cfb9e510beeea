"""The Mann-Whitney test, held against scipy.stats.mannwhitneyu 1.17 (exact, and asymptotic with correction for continuity)."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.comparing.significance import is_significant, p_value


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 0.007936507936507936),
        ([1, 3, 5, 7, 9, 11], [2, 4, 6, 8, 10, 12], 0.6991341991341992),
        ([10, 11, 12, 13, 14], [12.5, 13.5, 14.5, 15.5, 9], 0.42063492063492064),
        ([1, 2, 2, 3, 4], [2, 3, 4, 5, 6], 0.13633299527519235),
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1], 1.0),
        ([1, 1, 2, 2, 3, 3], [2, 2, 3, 3, 4, 4, 5], 0.06543794068509567),
        (list(range(25)), list(range(3, 28)), 0.17417273739617822),
    ],
)
def test_p_values_are_those_of_scipy(base: list[float], new: list[float], expected: float) -> None:
    assert p_value(base, new) == pytest.approx(expected, rel=1e-12)


def test_the_exact_distribution_is_that_of_all_orders() -> None:
    base, new = [1.0, 2.0, 4.0, 7.0, 9.0], [3.0, 5.0, 6.0, 8.0, 10.0, 11.0]
    u = sum(b > n for b in base for n in new)
    ranks = [
        sum(place > other for place in chosen for other in range(11) if other not in chosen)
        for chosen in combinations(range(11), 5)
    ]
    extreme = sum(rank <= min(u, 30 - u) for rank in ranks)
    assert p_value(base, new) == pytest.approx(2 * extreme / math.comb(11, 5), rel=1e-12)


def test_four_steps_are_not_tested() -> None:
    assert p_value([1, 2, 3, 4], [5, 6, 7, 8, 9]) is None
    assert is_significant(None) is None


@given(st.lists(st.integers(0, 99), min_size=5, max_size=30), st.lists(st.integers(0, 99), min_size=5, max_size=30))
def test_it_is_a_probability_and_the_order_of_the_samples_does_not_matter(base: list[float], new: list[float]) -> None:
    found = p_value(base, new)
    assert found is not None
    assert 0 <= found <= 1
    assert p_value(new, base) == pytest.approx(found, rel=1e-9)
