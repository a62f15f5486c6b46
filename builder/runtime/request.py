"""What goes into the engine and what comes out of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from builder.decoding.params import SamplingParams


class FinishReason(StrEnum):
    STOP = "stop"  # end-of-sequence token or a stop string
    LENGTH = "length"  # max_tokens reached, or the context is full
    TIMEOUT = "timeout"  # the request's time is over; what was made until then is given out
    CANCELLED = "cancelled"
    ERROR = "error"


class Cancellation(StrEnum):
    """Why a request ended before its answer did; a label of a metric, so a closed set."""

    CLIENT = "client"  # stopped by its id
    DISCONNECTED = "disconnected"  # Triton knows that nobody waits
    DEADLINE = "deadline"
    UNDELIVERABLE = "undeliverable"  # its consumer raised
    SHUTDOWN = "shutdown"


@dataclass(frozen=True)
class Request:
    """One prompt to continue. `speculation` and `early_exit` False turn them off for this request; nothing forces them on.

    `priority` 0 is the most urgent; a tenant's limit may make it larger.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    speculation: bool = True
    tenant: str = "other"
    rollout_arm: str = ""  # "speculation" | "control" where only a share of the requests is speculated on
    arrival: float = field(default_factory=time.monotonic)  # seconds, monotonic clock
    priority: int = 0
    timeout: float | None = None  # seconds from arrival to the last token
    early_exit: bool = True


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True)
class DecodeStats:
    """How the answer was made. acceptance_histogram[n] counts rounds in which n drafted tokens were accepted."""

    optimisation: str  # "plain" | "speculative": a round had a draft | "early_exit": a token left at an inner layer
    num_spec_steps: int = 0  # rounds that had a draft
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: tuple[int, ...] = ()
    target_passes: int = 0
    target_passes_avoided: int = 0  # that decoding without drafts would have needed beside these
    compute_seconds: float = 0.0  # the request's share of the time of its passes, drafts included
    time_to_first_token: float = 0.0  # seconds from arrival
    decode_seconds: float = 0.0  # from the first token to the last
    state: str = "plain"  # "speculating" | "plain" | "probing", at its last step
    draft_length: int = 0  # K at its last step
    rollout_arm: str = ""  # of the request
    evicted_tokens: int = 0  # of prompt and answer, forgotten to make room in the context: the answer is not that of the whole text
    exit_layers: Mapping[int, int] = field(default_factory=dict)  # layers run -> tokens; empty where the pipeline has no early exit
    pending_fills: int = 0  # tokens that left early and had their keys and values made later
    early_exit: str = "none"  # why tokens may leave, or not (runtime.exits.ExitState), at its last step

    @property
    def average_layers(self) -> float | None:
        """Layers a token ran through before it was chosen; None without early exit."""
        tokens = sum(self.exit_layers.values())
        return sum(layer * count for layer, count in self.exit_layers.items()) / tokens if tokens else None

    @property
    def draft_acceptance_rate(self) -> float:
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a speculative round gave, its bonus or resampled token included; 1.0 without speculation."""
        return 1.0 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 1.0


@dataclass(frozen=True)
class Output:
    """A chunk of an answer: new tokens since the last chunk. The last one has finish_reason, usage and stats.

    `context_ids` are the tokens just before `token_ids` (tail of the prompt included): enough for a stateless
    detokenizer. `text_limit` is the number of characters of this chunk's text to keep; -1 keeps all (a stop
    string may cut inside a token). `logprobs[i]` belongs to token_ids[i] when asked for. `index` tells the answers of
    one request apart; the prompt is in the usage of the first only.
    """

    request_id: str
    token_ids: tuple[int, ...]
    context_ids: tuple[int, ...] = ()
    text_limit: int = -1
    logprobs: tuple[dict[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    stats: DecodeStats | None = None
    error: str | None = None
    cancellation: Cancellation | None = None
    index: int = 0
