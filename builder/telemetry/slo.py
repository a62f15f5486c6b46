"""The state of a pipeline's service level objectives, from the server's histograms over a sliding window."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from builder.spec.slo import Slo
from builder.telemetry import catalogue
from builder.telemetry.quantile import count_above, difference, quantile
from builder.telemetry.scrape import Scrape

WINDOW = 300.0  # seconds
HISTOGRAMS = {  # by key of `slo`
    "ttft_p95": catalogue.FIRST_TOKEN,
    "inter_token_p95": catalogue.INTER_TOKEN_LATENCY,
    "e2e_p95": catalogue.REQUEST_LATENCY,
}
P95 = 0.95

Reading = Mapping[str, dict[float, float]]  # cumulative buckets by key of `slo`


@dataclass(frozen=True)
class SloState:
    """Seconds. `p95` is None when nothing was observed in the window; the counts are those since the server's start."""

    objective: float
    p95: float | None
    observed: float
    slow: float  # observations above the objective

    @property
    def met(self) -> bool | None:
        return None if self.p95 is None else self.p95 <= self.objective


class SloWindow:
    """Keeps the readings of the last window: a percentile since the server's start would hide what users see now."""

    def __init__(self, slo: Slo, pipeline: str, window: float = WINDOW) -> None:
        self._objectives: dict[str, float] = {key: getattr(slo, key) for key in HISTOGRAMS}
        self._pipeline = pipeline
        self._window = window
        self._readings: deque[tuple[float, Reading]] = deque()

    def update(self, scraped: Scrape, now: float) -> dict[str, SloState]:
        """State by key of `slo`; `now` in seconds of a monotonic clock. The first call reports all since the server's start."""
        reading = {key: scraped.buckets(metric.name, model=self._pipeline) for key, metric in HISTOGRAMS.items()}
        while len(self._readings) > 1 and self._readings[1][0] <= now - self._window:
            self._readings.popleft()  # the newest one before the window's start stays: it is where the window begins
        oldest: Reading = self._readings[0][1] if self._readings else {}
        self._readings.append((now, reading))
        return {
            key: SloState(
                objective,
                quantile(P95, difference(reading[key], oldest.get(key, {}))),
                max(reading[key].values(), default=0.0),
                count_above(objective, reading[key]),
            )
            for key, objective in self._objectives.items()
        }
