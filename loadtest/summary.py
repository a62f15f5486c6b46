"""Samples to figures: one summary for each arm, the ratio of the two, and the promises kept or broken."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from builder.spec.slo import Slo
from loadtest.sample import Sample
from loadtest.timetable import PLAIN, SPECULATIVE, Block

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
MOST_FAILURES = 0.01  # of the requests that were meant to be answered


@dataclass(frozen=True)
class Quantiles:
    """Milliseconds; exact quantiles of all values, linear between two. None without values."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, seconds: Iterable[float | None]) -> Quantiles:
        values = [value * 1e3 for value in seconds if value is not None]
        return cls(*(float(np.quantile(values, q)) if values else None for q in QUANTILES.values()))

    def to_json(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in QUANTILES}


@dataclass(frozen=True)
class Arm:
    """Latencies count from when a request was due, and are of whole answers only. `failures`: errors, and refusals of good requests."""

    name: str
    requests: int
    completed: int
    cancelled: int
    refused: int  # malformed requests; the refusal of a good one is a failure
    failures: int
    tokens: int
    tokens_per_second: float
    requests_per_second: float
    ttft: Quantiles
    inter_token: Quantiles
    e2e: Quantiles
    longest_gap: Quantiles
    late_starts: Quantiles  # of the clients themselves: how long after its due time a request was sent
    acceptance_rate: float | None
    acceptance_length: float | None

    @classmethod
    def of(cls, name: str, samples: Sequence[Sample], blocks: Sequence[Block]) -> Arm:
        mine = [sample for sample in samples if sample.arm == name]
        done = [sample for sample in mine if sample.complete]
        seconds = sum(block.seconds for block in blocks if block.arm == name)
        drafted, rounds = sum(s.drafted for s in mine), sum(s.rounds for s in mine)
        accepted = sum(s.accepted for s in mine)
        return cls(
            name=name,
            requests=len(mine),
            completed=len(done),
            cancelled=sum(s.outcome in ("cancelled", "left") for s in mine),
            refused=sum(s.outcome == "refused" and s.fault == "malformed" for s in mine),
            failures=sum(failed(s) for s in mine),
            tokens=sum(s.tokens for s in mine),
            tokens_per_second=sum(tokens_per_second(mine, block) * block.seconds for block in blocks if block.arm == name) / seconds,
            requests_per_second=len(done) / seconds,
            ttft=Quantiles.of(s.ttft for s in done),
            inter_token=Quantiles.of(s.inter_token for s in done),
            e2e=Quantiles.of(s.e2e for s in done),
            longest_gap=Quantiles.of(s.longest_gap for s in done),
            late_starts=Quantiles.of(s.started - s.due for s in mine),
            acceptance_rate=accepted / drafted if drafted else None,
            acceptance_length=1 + accepted / rounds if rounds else None,
        )

    @property
    def failure_share(self) -> float:
        return self.failures / self.requests if self.requests else 1.0

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "completed": self.completed,
            "cancelled": self.cancelled,
            "refused": self.refused,
            "failures": self.failures,
            "tokens": self.tokens,
            "tok_s": self.tokens_per_second,
            "requests_s": self.requests_per_second,
            "ttft_ms": self.ttft.to_json(),
            "inter_token_ms": self.inter_token.to_json(),
            "e2e_ms": self.e2e.to_json(),
            "longest_gap_ms": self.longest_gap.to_json(),
            "late_start_ms": self.late_starts.to_json(),
            "acceptance_rate": self.acceptance_rate,
            "acceptance_length": self.acceptance_length,
        }


def failed(sample: Sample) -> bool:
    if sample.fault == "malformed":
        return sample.outcome != "refused"
    return sample.outcome in ("failed", "refused")


def tokens_per_second(samples: Iterable[Sample], block: Block) -> float:
    """Of the block's own seconds: an answer that ends after them counts with the part that fell into them, its tokens spread evenly
    over its decoding. So the tail in which fewer and fewer answers run makes no arm look slow."""
    return sum(sample.tokens * _share_within(sample, block.seconds) for sample in samples if sample.block == block.number) / block.seconds


def _share_within(sample: Sample, seconds: float) -> float:
    first = sample.first if sample.first is not None else sample.last - sample.decode_seconds
    if sample.last <= seconds:
        return 1.0
    return max(0.0, (seconds - first) / (sample.last - first)) if sample.last > first else 0.0


def ratio(samples: Sequence[Sample], blocks: Sequence[Block]) -> float | None:
    """Speculative over plain tokens per second, the median over the pairs of blocks; None without pairs."""
    by_pair: dict[int, dict[str, float]] = {}
    for block in blocks:
        if block.arm in (PLAIN, SPECULATIVE):
            by_pair.setdefault(block.pair, {})[block.arm] = tokens_per_second(samples, block)
    ratios = [pair[SPECULATIVE] / pair[PLAIN] for pair in by_pair.values() if pair.get(PLAIN)]
    return statistics.median(ratios) if ratios else None


@dataclass(frozen=True)
class Check:
    """A promise of `slo`, in milliseconds; or the share of failures. Without a measurement it is broken."""

    name: str
    limit: float
    measured: float | None

    @property
    def passed(self) -> bool:
        return self.measured is not None and self.measured <= self.limit

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "limit": self.limit, "measured": self.measured, "passed": self.passed}


def checks(arm: Arm, slo: Slo, streams: bool) -> list[Check]:
    """Of the arm that users get. Where no request streams, the two promises about chunks cannot be measured and are left out."""
    found = [Check("e2e_p95", slo.e2e_p95 * 1e3, arm.e2e.p95), Check("failures", MOST_FAILURES, arm.failure_share)]
    if streams:
        found[:0] = [
            Check("ttft_p95", slo.ttft_p95 * 1e3, arm.ttft.p95),
            Check("inter_token_p95", slo.inter_token_p95 * 1e3, arm.inter_token.p95),
        ]
    return found
