"""The verdict on what metering costs, from made-up speeds."""

from __future__ import annotations

import random

import pytest

from builder.bench.spread import Spread
from loadtest.median_interval import MedianInterval
from loadtest.metering import Metering

FAST = Spread(0.001, 0.001, 0.001)


def noisy(shift: float, values: int = 200, spread: float = 0.05, seed: int = 0) -> MedianInterval:
    rng = random.Random(seed)
    return MedianInterval.of(shift + rng.gauss(0, spread) for _ in range(values))


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    found = [noisy(0.01, values=40, seed=seed) for seed in range(400)]
    held = sum(interval.low <= 0.01 <= interval.high for interval in found)
    assert 0.93 * len(found) <= held < len(found), "an interval that always holds it says nothing"


def test_too_few_values_say_nothing() -> None:
    assert MedianInterval.of([0.01] * 4).to_json() == {"median": 0.01, "low": None, "high": None, "values": 4}
    with pytest.raises(ValueError, match="no values"):
        MedianInterval.of([])


@pytest.mark.parametrize(
    ("cost", "control", "scrape", "verdict"),
    [
        (noisy(0.005), noisy(0.0), 0.002, "passed"),
        (noisy(0.05), noisy(0.0), 0.002, "failed"),
        (noisy(0.019), noisy(0.0), 0.002, "inconclusive"),
        (noisy(0.005, values=4), noisy(0.0), 0.002, "inconclusive"),
        (noisy(0.005), noisy(0.03), 0.002, "inconclusive"),  # it sees a cost where there is none
        (noisy(0.005), noisy(0.0), 0.06, "failed"),
    ],
)
def test_a_cost_is_small_only_when_chance_cannot_explain_it(
    cost: MedianInterval, control: MedianInterval, scrape: float, verdict: str
) -> None:
    assert Metering({}, cost, control, Spread(scrape, scrape, scrape), scrape, FAST).verdict == verdict
