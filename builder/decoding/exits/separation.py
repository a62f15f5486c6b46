"""How well a confidence separates right exits from wrong ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


def auroc(confidence: Floats, right: Booleans) -> float:
    """Chance that a right row is surer than a wrong one, ties half (Mann-Whitney's U). 0.5 when all are right or all wrong."""
    positives = int(right.sum())
    negatives = len(right) - positives
    if not positives or not negatives:
        return 0.5
    ranks = stats.rankdata(confidence)
    above = float(ranks[right].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)


@dataclass(frozen=True)
class Bin:
    """Rows of like confidence: their mean confidence, and the share of them that is right."""

    confidence: float
    right: float
    rows: int


def reliability(confidence: Floats, right: Booleans, bins: int = 10) -> list[Bin]:
    """The reliability diagram's points in ascending confidence, about as many rows in each (fewer bins than asked where rows are few)."""
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return [Bin(float(confidence[part].mean()), float(right[part].mean()), len(part)) for part in parts]
