"""A median and how far chance may have moved it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from scipy import stats


@dataclass(frozen=True)
class MedianInterval:
    """`low` to `high` holds the median of what the values come from with 95 % confidence, whatever its form (order statistics)."""

    median: float
    low: float
    high: float
    values: int

    @classmethod
    def of(cls, values: Iterable[float]) -> MedianInterval:
        """Of at least one value; fewer than six say nothing, and the interval is everything. ValueError for none."""
        found = list(values)
        if not found:
            raise ValueError("no values to take the median of")
        interval = stats.quantile_test(found, p=0.5).confidence_interval(0.95)
        low, high = float(interval.low), float(interval.high)
        known = math.isfinite(low) and math.isfinite(high)
        return cls(statistics.median(found), low if known else -math.inf, high if known else math.inf, len(found))

    def to_json(self) -> dict[str, Any]:
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}
