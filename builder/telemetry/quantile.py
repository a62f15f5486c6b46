"""Quantiles of histograms, as Prometheus's histogram_quantile computes them."""

from __future__ import annotations

import math
from collections.abc import Mapping


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """The value below which `share` of the observations lie, linear inside a bucket; None without observations.

    `buckets` are cumulative counts by upper bound, the last of them infinite. Beyond the last finite bound the answer is
    that bound.
    """
    total = max(buckets.values(), default=0.0)
    if total <= 0:
        return None
    rank, lower, below = share * total, 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= rank:
            return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below or 1.0)
        lower, below = bound, count
    return lower


def difference(newer: Mapping[float, float], older: Mapping[float, float]) -> dict[float, float]:
    """What was observed between two readings. A server that started again counts from 0: then all that it has."""
    if any(count < older.get(bound, 0.0) for bound, count in newer.items()):
        return dict(newer)
    return {bound: count - older.get(bound, 0.0) for bound, count in newer.items()}


def count_above(value: float, buckets: Mapping[float, float]) -> float:
    """How many observations lie above `value`, linear inside a bucket. Grows whenever a bucket does: a counter."""
    total = max(buckets.values(), default=0.0)
    lower, below = 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if value < bound:
            inside = 0.0 if math.isinf(bound) else (value - lower) / (bound - lower)
            return total - below - inside * (count - below)
        lower, below = bound, count
    return total - below
