"""The p95 that the server's histograms tell of a load, beside the exact one of its clients."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from builder.telemetry.catalogue import FIRST_TOKEN, INTER_TOKEN_LATENCY, REQUEST_LATENCY, Metric
from builder.telemetry.quantile import difference, quantile
from builder.telemetry.scrape import Scrape
from builder.telemetry.slo import P95
from loadtest.sample import Sample
from loadtest.summary import Quantiles

MOST_APART = 1  # buckets: a histogram knows no more
FLUSHED = 1.0  # seconds after which the metrics hold all of a load; they are flushed four times a second


def first_token(sample: Sample) -> float | None:
    return None if sample.first is None else sample.first - sample.started


def inter_token(sample: Sample) -> float | None:
    return sample.inter_token


def end_to_end(sample: Sample) -> float | None:
    return sample.last - sample.started if sample.complete else None


MEASURES: dict[str, tuple[Metric, Callable[[Sample], float | None]]] = {
    "ttft_p95": (FIRST_TOKEN, first_token),
    "inter_token_p95": (INTER_TOKEN_LATENCY, inter_token),
    "e2e_p95": (REQUEST_LATENCY, end_to_end),
}


@dataclass(frozen=True)
class ServerP95:
    """Seconds. The client's counts from sending the request, the server's from its arrival at the decode model."""

    name: str
    client: float
    server: float
    buckets_apart: int

    @property
    def agrees(self) -> bool:
        return self.buckets_apart <= MOST_APART

    def to_json(self) -> dict[str, Any]:
        times = {"client_ms": self.client * 1e3, "server_ms": self.server * 1e3}
        return {"name": self.name, **times, "buckets_apart": self.buckets_apart, "agrees": self.agrees}


def compare(before: Scrape, after: Scrape, pipeline: str, samples: Sequence[Sample]) -> tuple[ServerP95, ...]:
    """Of all samples, the warm-up too, as the server saw them; a measure that nobody observed is left out."""
    found = []
    for name, (metric, measure) in MEASURES.items():
        seen = Quantiles.of(map(measure, samples)).p95
        told = quantile(P95, difference(*(page.buckets(metric.name, model=pipeline) for page in (after, before))))
        if seen is not None and told is not None:
            exact = seen / 1e3
            apart = abs(bisect.bisect_left(metric.buckets, exact) - bisect.bisect_left(metric.buckets, told))
            found.append(ServerP95(name, exact, told, apart))
    return tuple(found)
