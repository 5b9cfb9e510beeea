"""Means over GPUs, weighted by their windows."""

from __future__ import annotations

from collections.abc import Sequence


def weighted(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    """The weighted mean; null where a value is unknown."""
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    if len(known) < len(weights) or not sum(weights):
        return None
    return float(sum(v * w for v, w in known)) / sum(weights)
