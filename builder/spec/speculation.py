"""`speculation`: who proposes tokens, and how many."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from builder.spec.durations import Duration
from builder.spec.measured import Measured
from builder.spec.section import Section

Proposer = Literal["draft_model", "ngram", "hybrid", "early_exit", "none"]


class Control(Section):
    """How many tokens are drafted, decided while serving."""

    adaptive: bool = Field(
        default=True,
        description="Draft as many tokens as pay at the moment, up to max_draft_tokens, by measured acceptance and step times; none while "
        "drafts do not pay. false: always max_draft_tokens.",
    )
    early_stop: bool = Field(
        default=False,
        description="End a draft where the draft model is too unsure for one more step to pay, by measured acceptance and step times, "
        "while adaptive. Meant for a max_draft_tokens above 4; up to 4 it made no difference.",
    )
    rearm_after: Duration = Field(
        default="10s",
        validate_default=True,
        gt=0,
        description="Longest wait before drafts that did not pay are tried again. First tries come sooner (1s, 2s, 4s); a try takes a few "
        "rounds, all tries together at most 1 % of the time.",
    )


class Speculation(Section):
    """Speculative decoding. Answers keep the target's distribution whatever is set here; only speed changes."""

    proposer: Proposer = Field(
        default="hybrid",
        description="draft_model: the draft. ngram: repeats earlier text, costs nothing. hybrid: ngram where it finds a match and that "
        "pays, else the draft. early_exit: the target's own first layers and a calibrated exit head, with early_exit.mode draft. none: "
        "plain decoding.",
    )
    max_draft_tokens: int = Field(
        default=4,
        ge=1,
        le=16,
        description="K: most tokens proposed in a round. One target pass checks them all.",
    )
    measured: Measured | None = Field(
        default=None, description="Acceptance and step times measured elsewhere; `plan` predicts with them. null: it estimates."
    )

    control: Control = Field(default_factory=Control, description="How many tokens are drafted, decided while serving.")
    rollout: int = Field(
        default=100,
        ge=0,
        le=100,
        description="Percent of the requests that are speculated on; the others are decoded plainly. Both are counted apart.",
    )
    rollout_by: Literal["request", "tenant"] = Field(
        default="request",
        description="What decides the side a request is on: its id, or its tenant. Always the same side for the same one.",
    )

    @property
    def needs_draft(self) -> bool:
        return self.proposer in ("draft_model", "hybrid")
