"""What one version of a canary showed since it began, read from the metrics of the servers that serve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.runtime.request import FinishReason
from builder.telemetry.catalogue import ACCEPTED_TOKENS, DRAFT_TOKENS, FINISHED_REQUESTS, REQUEST_LATENCY, Metric
from builder.telemetry.quantile import difference, quantile
from builder.telemetry.scrape import Scrape, gained
from builder.telemetry.slo import P95

ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)
FAILED = (FinishReason.ERROR, FinishReason.TIMEOUT)


@dataclass(frozen=True)
class Arm:
    """Counts; `seconds` are those of ended requests, from arrival at the decode model, as a histogram: cumulative counts by upper bound.
    Requests that their clients left count neither as answered nor as failed."""

    answered: float = 0.0
    failed: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    seconds: Mapping[float, float] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        return round(self.answered + self.failed)

    @property
    def error_rate(self) -> float:
        return self.failed / self.requests if self.requests else 0.0

    @property
    def timed(self) -> int:
        """How many requests `seconds` has."""
        return round(max(self.seconds.values(), default=0.0))

    @property
    def p95(self) -> float | None:
        """Seconds; None when nothing was answered."""
        return quantile(P95, self.seconds)

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted tokens; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    def since(self, older: Arm) -> Arm:
        """What was added since an older reading."""
        counts = {name: gained(getattr(self, name), getattr(older, name)) for name in ("answered", "failed", "drafted", "accepted")}
        return Arm(**counts, seconds=difference(self.seconds, older.seconds))

    def to_json(self) -> dict[str, Any]:
        def rounded(value: float | None) -> float | None:
            return None if value is None else round(value, 4)

        rates = {"error_rate": self.error_rate, "p95_seconds": self.p95, "acceptance": self.acceptance}
        return {"requests": self.requests, "failed": round(self.failed), **{name: rounded(value) for name, value in rates.items()}}


def read_arm(scrapes: Sequence[Scrape], pipeline: str, version: int) -> Arm:
    """The sum over the servers, since each of them started."""
    labels = {"model": pipeline, "version": str(version)}
    seconds: dict[float, float] = {}
    for scraped in scrapes:
        for bound, count in scraped.buckets(REQUEST_LATENCY.name, **labels).items():
            seconds[bound] = seconds.get(bound, 0.0) + count

    def total(metric: Metric, **more: str) -> float:
        return sum(scraped.total(metric.name, **labels, **more) for scraped in scrapes)

    return Arm(
        answered=sum(total(FINISHED_REQUESTS, finish_reason=reason) for reason in ANSWERED),
        failed=sum(total(FINISHED_REQUESTS, finish_reason=reason) for reason in FAILED),
        drafted=total(DRAFT_TOKENS),
        accepted=total(ACCEPTED_TOKENS),
        seconds=seconds,
    )
