"""Every metric of the serving process: its name, kind, meaning and labels. Nothing else in the project names a metric.

Counters only grow and rates are taken by the reader (acceptance rate = rate of accepted over rate of drafted tokens);
quantiles come from the histograms. Buckets are those of OpenTelemetry's semantic conventions for generative AI
(`gen_ai.server.time_to_first_token`, `gen_ai.server.time_per_output_token`, `gen_ai.server.request.duration`), in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "tandem_"
COMMON_LABELS = ("model", "version")

TIME_TO_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TIME_PER_OUTPUT_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
REQUEST_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
# One CPU token takes 3 to 10 ms here, below the convention's first bucket: three more keep p95 readable there
INTER_TOKEN = (0.001, 0.0025, 0.005, *TIME_PER_OUTPUT_TOKEN)
ACCEPTANCE_LENGTH = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 17.0)  # tokens a round, at most 16 drafted and one more


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()  # beside COMMON_LABELS
    buckets: tuple[float, ...] = ()


def _metric(name: str, kind: Literal["counter", "gauge", "histogram"], text: str, *labels: str, buckets: tuple[float, ...] = ()) -> Metric:
    return Metric(PREFIX + name, kind, text, labels, buckets)


DRAFTS = _metric("spec_decode_num_drafts", "counter", "Rounds that had a draft")
DRAFT_TOKENS = _metric("spec_decode_num_draft_tokens", "counter", "Tokens drafted")
ACCEPTED_TOKENS = _metric("spec_decode_num_accepted_tokens", "counter", "Drafted tokens accepted; bonus tokens do not count")
ACCEPTED_PER_POSITION = _metric(
    "spec_decode_num_accepted_tokens_per_pos", "counter", "Drafted tokens accepted, by their place in the draft from 0", "position"
)
TOKENS = _metric(
    "tokens",
    "counter",
    "Tokens of ended requests: input, cached_input (of the prefix cache), output, draft_rejected",
    "tenant",
    "token_type",
    "optimisation",
)
FINISHED_REQUESTS = _metric(
    "finished_requests",
    "counter",
    "Requests that ended, by finish_reason: stop, length, cancelled, error",
    "tenant",
    "optimisation",
    "finish_reason",
)
TARGET_PASSES_AVOIDED = _metric(
    "target_passes_avoided", "counter", "Target passes that ended requests would have needed beside theirs without drafts"
)
COMPUTE_SECONDS = _metric(
    "compute_seconds", "counter", "Time of passes and drafts, by whose requests were in them", "tenant", "optimisation"
)
LEDGER_RECORDS = _metric("ledger_records", "counter", "Records handed to the usage ledger's file: one a finished request")
LEDGER_LOST = _metric("ledger_lost_records", "counter", "Records dropped because the ledger could not be written for too long")
LEDGER_FAILURES = _metric("ledger_failures", "counter", "Failed attempts to write, sync or seal the usage ledger")
LEDGER_PENDING = _metric("ledger_pending_records", "gauge", "Records in memory because the usage ledger cannot be written")
LEDGER_WRITER = _metric(
    "ledger_writer", "gauge", "Always 1; the label is the part of the ledger's file names that says who writes", "writer"
)
TARGET_PASSES = _metric("target_passes", "counter", "Passes of the target over a batch")
FIRST_TOKEN = _metric(
    "time_to_first_token_seconds", "histogram", "From arrival at the decode model to the first token", buckets=TIME_TO_FIRST_TOKEN
)
INTER_TOKEN_LATENCY = _metric(
    "inter_token_latency_seconds",
    "histogram",
    "Time from an answer's first token to its last, divided by the tokens after the first; one observation an answer",
    buckets=INTER_TOKEN,
)
REQUEST_LATENCY = _metric(
    "e2e_request_latency_seconds", "histogram", "From arrival at the decode model to the last token", buckets=REQUEST_DURATION
)
ACCEPTANCE_LENGTH_OF_REQUEST = _metric(
    "spec_decode_acceptance_length",
    "histogram",
    "Mean tokens a speculative round gave (bonus or resampled token included); one observation a request that had a draft",
    buckets=ACCEPTANCE_LENGTH,
)
REQUESTS = _metric("requests", "gauge", "Requests in the engine after its latest pass: running, waiting", "state")
REFUSALS = _metric(
    "request_refusals",
    "counter",
    "Requests that were refused and may come again later, by limit: queue, tenant_concurrency, tenant_rate, restart",
    "tenant",
    "limit",
)
CANCELLATIONS = _metric(
    "request_cancellations",
    "counter",
    "Answers ended before they were complete: client (stopped by id), disconnected, deadline, undeliverable, shutdown",
    "reason",
)
KV_BLOCKS = _metric(
    "kv_blocks", "gauge", "Blocks of the KV cache after the latest pass: used, cached (kept for equal prompts), free", "state"
)
EARLY_EXIT_TOKENS = _metric(
    "early_exit_tokens",
    "counter",
    "Tokens of ended requests by the layers they ran through; only where the pipeline has early exit",
    "layer",
)
EARLY_EXIT_LAYERS = _metric(
    "early_exit_layers", "counter", "Layers that those tokens ran through; over early_exit_tokens it is the average depth"
)
EARLY_EXIT_PENDING_FILLS = _metric(
    "early_exit_pending_fills", "counter", "Tokens that left early and had their keys and values filled by a later pass"
)
FLAG = _metric("flag", "gauge", "Whether the operator allows it for the whole pipeline: 1 on, 0 off", "name")
STATE = _metric("state", "gauge", "1 for the state that speculation is in: speculating, plain or probing", "state")
STATE_TRANSITIONS = _metric(
    "state_transitions", "counter", "Changes of the state of speculation, of any class of sampling or tenant", "from", "to", "reason"
)
DRAFT_LENGTH = _metric("spec_decode_draft_length", "gauge", "K: the most tokens that a sequence of the latest batch may have drafted")
ROLLOUT_REQUESTS = _metric("rollout_requests", "counter", "Ended requests of each side of a rollout: speculation, control", "arm")
ROLLOUT_TOKENS = _metric("rollout_tokens", "counter", "Output tokens after the first, of ended requests of each side", "arm")
ROLLOUT_SECONDS = _metric("rollout_decode_seconds", "counter", "Seconds from first to last token, of ended requests of each side", "arm")
FLAGS_BROKEN = _metric("flags_broken", "gauge", "1 while the flags file cannot be read and the last good flags stay in force, else 0")
BUILD_INFO = _metric("build_info", "gauge", "Always 1; the labels say what serves", "builder_version")

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
