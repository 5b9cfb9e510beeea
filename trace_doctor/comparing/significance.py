"""Whether two samples of step times differ: the Mann-Whitney U test."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

ENOUGH_STEPS = 5
SIGNIFICANT = 0.05
_EXACT_UP_TO = 20


def p_value(base: Sequence[float], new: Sequence[float]) -> float | None:
    """Two-sided p-value that both samples come from one distribution; null with fewer than five in either.

    Exact for small samples without ties, else by the normal approximation with correction for ties and continuity. Source: Mann
    and Whitney, On a test of whether one of two random variables is stochastically larger than the other, 1947.
    """
    if min(len(base), len(new)) < ENOUGH_STEPS:
        return None
    u = _u(base, new)
    has_ties = len(set(base) | set(new)) < len(base) + len(new)
    if not has_ties and max(len(base), len(new)) <= _EXACT_UP_TO:
        return _exact(min(u, len(base) * len(new) - u), len(base), len(new))
    return _approximate(u, [*base, *new], len(base), len(new))


def is_significant(p: float | None) -> bool | None:
    """Whether a p-value is below 5 %; null where nothing was tested."""
    return None if p is None else p < SIGNIFICANT


def _u(base: Sequence[float], new: Sequence[float]) -> float:
    """Pairs in which the base is larger; equal ones count half."""
    return sum((b > n) + 0.5 * (b == n) for b in base for n in new)


def _exact(u: float, n: int, m: int) -> float:
    ways = sum(_ways(k, n, m) for k in range(int(u) + 1))
    return min(1.0, 2 * ways / math.comb(n + m, n))


@cache
def _ways(u: int, n: int, m: int) -> int:
    """Orders of n and m values with exactly u pairs in which the first is larger."""
    if u < 0:
        return 0
    if n == 0 or m == 0:
        return int(u == 0)
    return _ways(u - m, n - 1, m) + _ways(u, n, m - 1)


def _approximate(u: float, values: Sequence[float], n: int, m: int) -> float:
    total = n + m
    ties = sum(count**3 - count for count in Counter(values).values())
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    distance = max(abs(u - n * m / 2) - 0.5, 0.0)
    return math.erfc(distance / math.sqrt(2 * variance))
