"""`quality`: what a version has to show before it goes live."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from builder.spec.section import Section

SHIPPED_SUITES = ("facts", "code", "refusals", "rewrite")
SUITE_FILE = ".jsonl"  # the ending that tells a user's own suite from a shipped one
Suite = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class Quality(Section):
    """Gates of `builder verify`, which `builder build` runs before it publishes."""

    suites: tuple[Suite, ...] = Field(
        default=SHIPPED_SUITES,
        strict=False,  # YAML and JSON have lists, no tuples; the items stay strict text
        min_length=1,
        max_length=32,
        description="Prompts to answer: facts, code, refusals, rewrite, or a .jsonl file of the same form (relative to this file).",
    )
    min_token_identity: float = Field(
        default=1.0, ge=0, le=1, description="Smallest share of prompts whose greedy tokens are those of plain decoding."
    )
    max_success_drop: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Largest loss of task success (share of prompts), against plain decoding and against the live version. "
        "A larger one fails when its 95 % interval (paired bootstrap) does not reach 0.",
    )
    max_drift: float = Field(
        default=0.1,
        ge=0,
        description="Largest change of the answers against plain decoding: relative for length and perplexity, absolute for refusal "
        "rate and repetition; judged as max_success_drop is.",
    )
    significance: float = Field(
        default=0.01,
        gt=0,
        lt=0.5,
        description="Chance that the distribution tests fail a right version: all tests of a run together (Holm).",
    )
    max_disagreement: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="Early exit: largest share of an answer's tokens, on average, that may differ from what the full model says at the "
        "same place. `builder calibrate` finds thresholds that keep to it, or says that there are none.",
    )
    confidence: float = Field(
        default=0.95, gt=0.5, lt=1, description="Early exit: how sure the calibration must be that max_disagreement is kept."
    )

    @field_validator("suites")
    @classmethod
    def _suites_are_known(cls, suites: tuple[str, ...]) -> tuple[str, ...]:
        for suite in suites:
            if suite not in SHIPPED_SUITES and not suite.endswith(SUITE_FILE):
                raise ValueError(f"{suite!r} is neither {', '.join(SHIPPED_SUITES)} nor a {SUITE_FILE} file")
        if len(set(suites)) < len(suites):
            raise ValueError("a suite is listed more than once")
        return suites
