"""The load test's own Prometheus metrics while it runs: what the clients see, beside what the server says of itself."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from builder.telemetry.catalogue import INTER_TOKEN, REQUEST_DURATION, TIME_TO_FIRST_TOKEN
from loadtest.sample import Sample

PREFIX = "tandem_loadtest_"


class LiveMetrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(f"{PREFIX}requests", "Ended requests", ("arm", "protocol", "outcome"), registry=registry)
        self._tokens = Counter(f"{PREFIX}tokens", "Tokens of answers", ("arm", "tenant"), registry=registry)
        self._drafted = Counter(f"{PREFIX}draft_tokens", "Tokens drafted", ("arm",), registry=registry)
        self._accepted = Counter(f"{PREFIX}accepted_tokens", "Drafted tokens accepted", ("arm",), registry=registry)
        self._users = Gauge(f"{PREFIX}users", "Users asked for in this block", registry=registry)
        self._ttft = Histogram(
            f"{PREFIX}time_to_first_token_seconds", "From when a request was due", ("arm",), buckets=TIME_TO_FIRST_TOKEN, registry=registry
        )
        self._inter_token = Histogram(
            f"{PREFIX}inter_token_latency_seconds", "Mean of a request", ("arm",), buckets=INTER_TOKEN, registry=registry
        )
        self._e2e = Histogram(
            f"{PREFIX}e2e_request_latency_seconds", "From when a request was due", ("arm",), buckets=REQUEST_DURATION, registry=registry
        )

    def serve(self, port: int) -> None:
        """On this machine only."""
        start_http_server(port, addr="127.0.0.1", registry=self.registry)

    def users(self, count: int) -> None:
        self._users.set(count)

    def add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self._requests.labels(sample.arm, sample.protocol, sample.outcome).inc()
            self._tokens.labels(sample.arm, sample.tenant).inc(sample.tokens)
            self._drafted.labels(sample.arm).inc(sample.drafted)
            self._accepted.labels(sample.arm).inc(sample.accepted)
            if not sample.complete:
                continue
            self._e2e.labels(sample.arm).observe(sample.e2e)
            if sample.ttft is not None:
                self._ttft.labels(sample.arm).observe(sample.ttft)
            if sample.inter_token is not None:
                self._inter_token.labels(sample.arm).observe(sample.inter_token)
