"""`speculation`: who proposes tokens, and how many."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from builder.spec.measured import Measured
from builder.spec.section import Section

Proposer = Literal["draft_model", "ngram", "hybrid", "none"]


class Speculation(Section):
    """Speculative decoding. Answers keep the target's distribution whatever is set here; only speed changes."""

    proposer: Proposer = Field(
        default="hybrid",
        description="draft_model: the draft. ngram: repeats earlier text, costs nothing. hybrid: ngram where it finds a match, "
        "else the draft. none: plain decoding.",
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

    @property
    def needs_draft(self) -> bool:
        return self.proposer in ("draft_model", "hybrid")
