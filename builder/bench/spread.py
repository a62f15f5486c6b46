"""A measured quantity: its median and the quartiles around it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    median: float
    p25: float
    p75: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value. ValueError for none."""
        found = sorted(values)
        if not found:
            raise ValueError("no values to take the median of")
        low, middle, high = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
        return cls(middle, low, high)

    def to_json(self) -> dict[str, Any]:
        return {"median": self.median, "p25": self.p25, "p75": self.p75}
