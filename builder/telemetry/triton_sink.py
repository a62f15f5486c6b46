"""An observer that fills Triton's metrics (port 8002) through pb_utils.MetricFamily.

A call into Triton's metrics costs 80 us of shared-memory round trip in tritonserver 2.51, as much as a draft step of a
small model. So the decode loop only adds numbers up, and `flush`, called from another thread, hands the sums over: one
call a counter or gauge that changed, and one an observation for histograms (the interface has no other way).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from builder import __version__
from builder.decoding.control import State
from builder.runtime.request import Output, Request
from builder.runtime.speculation import ControlReport
from builder.telemetry import catalogue
from builder.telemetry.catalogue import CATALOGUE, COMMON_LABELS, Metric

Key = tuple[Metric, tuple[str, ...]]  # a metric and the values of its own labels, in the catalogue's order


class TritonSink:
    """`families` is pb_utils.MetricFamily, the class: each metric of the catalogue becomes a family at construction."""

    def __init__(self, families: Any, *, model: str, version: str) -> None:
        self._common = dict(zip(COMMON_LABELS, (model, version), strict=True))
        kinds = {"counter": families.COUNTER, "gauge": families.GAUGE, "histogram": families.HISTOGRAM}
        self._families = {m: families(name=m.name, description=m.help, kind=kinds[m.kind]) for m in CATALOGUE}
        self._series: dict[Key, Any] = {}
        self._shown: dict[Key, float] = {}  # gauges as Triton has them
        self._lock = threading.Lock()  # guards the four below
        self._ledger_totals: dict[Metric, int] = defaultdict(int)
        self._sums: dict[Key, float] = defaultdict(float)
        self._gauges: dict[Key, float] = {(catalogue.BUILD_INFO, (__version__,)): 1.0}
        self._observations: list[tuple[Key, float]] = []
        for metric in CATALOGUE:  # a series that starts at 0 has a rate from its first event on
            if metric.kind != "gauge" and not metric.labels:
                self._of((metric, ()))

    def round_done(self, drafted: int, accepted: int) -> None:
        with self._lock:
            self._sums[catalogue.DRAFTS, ()] += 1
            self._sums[catalogue.DRAFT_TOKENS, ()] += drafted
            self._sums[catalogue.ACCEPTED_TOKENS, ()] += accepted
            for position in range(accepted):
                self._sums[catalogue.ACCEPTED_PER_POSITION, (str(position),)] += 1

    def tokens_emitted(self, request: Request, count: int, seconds_since_last: float | None) -> None:
        """Nothing is reported of a chunk: an observation of each would be a message to Triton of each."""

    def first_token(self, request: Request, seconds: float) -> None:  # noqa: ARG002 - Observer's
        with self._lock:
            self._observations.append(((catalogue.FIRST_TOKEN, ()), seconds))

    def finished(self, request: Request, output: Output, seconds: float) -> None:
        usage, stats = output.usage, output.stats
        with self._lock:
            self._observations.append(((catalogue.REQUEST_LATENCY, ()), seconds))
            if stats and stats.num_spec_steps:
                self._observations.append(((catalogue.ACCEPTANCE_LENGTH_OF_REQUEST, ()), stats.mean_acceptance_length))
            if output.cancellation is not None:
                self._sums[catalogue.CANCELLATIONS, (output.cancellation,)] += 1
            if usage and stats and request.rollout_arm:
                arm = (request.rollout_arm,)
                self._sums[catalogue.ROLLOUT_REQUESTS, arm] += 1
                self._sums[catalogue.ROLLOUT_TOKENS, arm] += max(0, usage.completion_tokens - 1)
                self._sums[catalogue.ROLLOUT_SECONDS, arm] += stats.decode_seconds
            if usage and stats:
                if usage.completion_tokens > 1 and stats.decode_seconds > 0:  # 0: all came in one round
                    per_token = stats.decode_seconds / (usage.completion_tokens - 1)
                    self._observations.append(((catalogue.INTER_TOKEN_LATENCY, ()), per_token))
                reason = str(output.finish_reason)
                self._sums[catalogue.FINISHED_REQUESTS, (request.tenant, stats.optimisation, reason)] += 1
                self._sums[catalogue.TARGET_PASSES_AVOIDED, ()] += stats.target_passes_avoided
                self._sums[catalogue.COMPUTE_SECONDS, (request.tenant, stats.optimisation)] += stats.compute_seconds
                for layer, tokens in stats.exit_layers.items():
                    self._sums[catalogue.EARLY_EXIT_TOKENS, (str(layer),)] += tokens
                    self._sums[catalogue.EARLY_EXIT_LAYERS, ()] += layer * tokens
                self._sums[catalogue.EARLY_EXIT_PENDING_FILLS, ()] += stats.pending_fills
                counts = {
                    "input": usage.prompt_tokens - usage.cached_tokens,
                    "cached_input": usage.cached_tokens,
                    "output": usage.completion_tokens,
                    "draft_rejected": stats.num_draft_tokens - stats.num_accepted_draft_tokens,
                }
                for token_type, count in counts.items():
                    self._sums[catalogue.TOKENS, (request.tenant, token_type, stats.optimisation)] += count

    def pass_done(self, running: int, waiting: int, blocks_used: int, blocks_cached: int, blocks_total: int) -> None:
        with self._lock:
            self._sums[catalogue.TARGET_PASSES, ()] += 1
            self._gauges[catalogue.REQUESTS, ("running",)] = running
            self._gauges[catalogue.REQUESTS, ("waiting",)] = waiting
            self._gauges[catalogue.KV_BLOCKS, ("used",)] = blocks_used
            self._gauges[catalogue.KV_BLOCKS, ("cached",)] = blocks_cached
            self._gauges[catalogue.KV_BLOCKS, ("free",)] = blocks_total - blocks_used - blocks_cached

    def refused(self, tenant: str, limit: str) -> None:
        with self._lock:
            self._sums[catalogue.REFUSALS, (tenant, limit)] += 1

    def flags_read(self, flags: Mapping[str, bool], broken: bool) -> None:
        """The pipeline's own flags by name, and whether their file is broken."""
        with self._lock:
            self._gauges[catalogue.FLAGS_BROKEN, ()] = broken
            for name, on in flags.items():
                self._gauges[catalogue.FLAG, (name,)] = on

    def ledger(self, writer: str, *, written: int, lost: int, failures: int, pending: int) -> None:
        """The usage ledger's counts since the start."""
        with self._lock:
            for metric, total in (
                (catalogue.LEDGER_RECORDS, written),
                (catalogue.LEDGER_LOST, lost),
                (catalogue.LEDGER_FAILURES, failures),
            ):
                self._sums[metric, ()] += total - self._ledger_totals[metric]
                self._ledger_totals[metric] = total
            self._gauges[catalogue.LEDGER_PENDING, ()] = pending
            self._gauges[catalogue.LEDGER_WRITER, (writer,)] = 1

    def control_read(self, report: ControlReport) -> None:
        """State, K and transitions of the draft-length control."""
        with self._lock:
            for state in State:
                self._gauges[catalogue.STATE, (state,)] = state is report.state
            self._gauges[catalogue.DRAFT_LENGTH, ()] = report.draft_tokens
            for found in report.transitions:
                self._sums[catalogue.STATE_TRANSITIONS, (found.old, found.new, found.reason)] += 1

    def flush(self) -> None:
        """Hand over what was added since the last call. One caller at a time."""
        with self._lock:
            sums, self._sums = self._sums, defaultdict(float)
            gauges, self._gauges = self._gauges, {}
            observations, self._observations = self._observations, []
        for key, amount in sums.items():
            if amount:
                self._of(key).increment(amount)
        for key, value in gauges.items():
            if self._shown.get(key) != value:
                self._of(key).set(value)
                self._shown[key] = value
        for key, value in observations:
            self._of(key).observe(value)

    def _of(self, key: Key) -> Any:
        if key not in self._series:
            metric, values = key
            labels = {**self._common, **dict(zip(metric.labels, values, strict=True))}
            buckets = {"buckets": list(metric.buckets)} if metric.kind == "histogram" else {}
            self._series[key] = self._families[metric].Metric(labels=labels, **buckets)
        return self._series[key]
