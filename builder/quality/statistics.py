"""The tests behind the gates: pooled chi-square, total variation, Holm's correction, the paired bootstrap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

SMALLEST_EXPECTED = 5.0  # a cell below makes the chi-square's p-value unreliable (Cochran 1954)
RESAMPLES = 2000


def chi_square(a: Mapping[int, int], b: Mapping[int, int]) -> float:
    """p-value of "both samples come from one distribution"; tokens too rare for their own cell are pooled. 1.0 for a single cell."""
    table = _pooled(a, b)
    if table.shape[1] < 2:
        return 1.0
    return float(stats.chi2_contingency(table, correction=False).pvalue)


def total_variation(a: Mapping[int, int], b: Mapping[int, int]) -> float:
    """Half the sum of |a - b| over the shares of each token: 0 the same sample, 1 nothing in common."""
    left, right = sum(a.values()) or 1, sum(b.values()) or 1
    return 0.5 * sum(abs(a.get(token, 0) / left - b.get(token, 0) / right) for token in {*a, *b})


def expected_variation(a: Mapping[int, int], b: Mapping[int, int], seed: int = 0, shuffles: int = 100) -> float:
    """Mean total variation of two samples of these sizes from their mixture: what chance alone gives."""
    tokens = np.array([token for counts in (a, b) for token, count in counts.items() for _ in range(count)])
    generator = np.random.default_rng(seed)
    size, found = sum(a.values()), []
    for _ in range(shuffles):
        mixed = generator.permutation(tokens)
        found.append(total_variation(Counter(mixed[:size].tolist()), Counter(mixed[size:].tolist())))
    return float(np.mean(found))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): reject those below the level, and the chance of any false rejection stays below it."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def beyond(self, limit: float) -> bool:
        """Whether the mean is further from 0 than `limit` and chance does not explain it: 0 is outside the interval."""
        return abs(self.mean) > limit and not self.low <= 0.0 <= self.high


def paired_bootstrap(before: Sequence[float], after: Sequence[float], seed: int = 0) -> Interval:
    """Of the mean of after - before over the same prompts (Efron's percentile interval)."""
    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    mean = float(differences.mean()) if len(differences) else 0.0
    if len(differences) < 2 or np.ptp(differences) == 0.0:  # nothing to resample: every sample is the same
        return Interval(mean, mean, mean)
    found = stats.bootstrap(
        (differences,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(seed), vectorized=True
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high))


def _pooled(a: Mapping[int, int], b: Mapping[int, int]) -> NDArray[np.int64]:
    """[2, cells]: a column for each token that both rows expect often enough, and one for all others together."""
    left, right = sum(a.values()), sum(b.values())
    smaller = min(left, right) / max(1, left + right)
    columns: list[tuple[int, int]] = []
    rest = [0, 0]
    for token in sorted({*a, *b}):
        pair = a.get(token, 0), b.get(token, 0)
        if sum(pair) * smaller >= SMALLEST_EXPECTED:
            columns.append(pair)
        else:
            rest[0] += pair[0]
            rest[1] += pair[1]
    if sum(rest) * smaller >= SMALLEST_EXPECTED or (not columns and any(rest)):
        columns.append((rest[0], rest[1]))
    return np.array(columns, dtype=np.int64).reshape(-1, 2).T
