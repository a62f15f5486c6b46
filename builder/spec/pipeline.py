"""The whole of pipeline.yaml."""

from __future__ import annotations

import difflib
from typing import Literal, Self

from pydantic import Field, model_validator

from builder.spec.chargeback import OTHER_TENANT, Chargeback
from builder.spec.draft import Draft
from builder.spec.early_exit import EarlyExit
from builder.spec.engine import Device, Engine
from builder.spec.metadata import Metadata
from builder.spec.quality import Quality
from builder.spec.section import Section, conflict
from builder.spec.serving import Serving
from builder.spec.slo import Slo
from builder.spec.speculation import Speculation
from builder.spec.target import Target
from builder.spec.tracing import Tracing
from builder.spec.versions import Versions


class PipelineSpec(Section):
    """A pipeline: one target, an optional draft, and how they are decoded, run and served.

    `model_dump(mode="json")` is what a version keeps as pipeline.json; `model_validate` reads it back unchanged.
    """

    apiVersion: Literal["tandem/v1"] = Field(default="tandem/v1", description="Version of this format.")
    kind: Literal["Pipeline"] = Field(default="Pipeline", description="What this file describes.")
    metadata: Metadata = Field(description="Name, owner and labels.")
    target: Target = Field(description="The model whose answers users get.")
    draft: Draft | None = Field(
        default_factory=Draft,
        description="The cheap model that proposes tokens; null means no draft. Unless set, an INT4 copy of the target.",
    )
    speculation: Speculation = Field(default_factory=Speculation, description="Who proposes tokens, and how many.")
    early_exit: EarlyExit = Field(default_factory=EarlyExit, description="Tokens that inner layers are sure of may leave there.")
    engine: Engine = Field(default_factory=Engine, description="The compiled engine, its limits and its KV cache.")
    serving: Serving = Field(default_factory=Serving, description="Addresses and limits of the Triton endpoints.")
    slo: Slo = Field(default_factory=Slo, description="What users are promised: 95th percentiles of latency.")
    quality: Quality = Field(default_factory=Quality, description="What a version has to show before it goes live.")
    versions: Versions = Field(default_factory=Versions, description="How versions follow each other.")
    chargeback: Chargeback = Field(default_factory=Chargeback, description="Token accounting by tenant: names, prices, the ledger.")
    tracing: Tracing = Field(default_factory=Tracing, description="Traces of single requests, for an OpenTelemetry collector.")

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.draft is None and self.speculation.needs_draft:
            raise conflict(
                "draft",
                f"speculation.proposer {self.speculation.proposer} needs a draft, but draft is null",
                "Describe a draft, or set proposer to ngram or none",
            )
        tokens, limit = self.serving.max_tokens, self.engine.longest_text
        if tokens is not None and tokens >= limit:
            raise conflict(
                "serving.max_tokens",
                f"serving.max_tokens {tokens} leaves no room for a prompt in the {limit} tokens that engine.max_seq_len allows",
                f"Set it below {limit}, or raise max_seq_len",
            )
        prompt = self.serving.max_prompt_tokens
        if prompt is not None and prompt >= limit:
            raise conflict(
                "serving.max_prompt_tokens",
                f"serving.max_prompt_tokens {prompt} leaves no room for an answer in the {limit} tokens that engine.max_seq_len allows",
                f"Set it below {limit}, or raise max_seq_len",
            )
        drafting = self.early_exit.mode == "draft"
        if drafting != (self.speculation.proposer == "early_exit"):
            raise conflict(
                "early_exit.mode",
                f"early_exit.mode {self.early_exit.mode} and speculation.proposer {self.speculation.proposer} do not go together: an exit "
                "that drafts is mode draft with proposer early_exit",
                "Set proposer to early_exit, or another mode" if drafting else "Set mode to draft, or choose another proposer",
            )
        if self.early_exit.mode != "none" and self.engine.kv_cache.eviction == "attention_sink":
            raise conflict(
                "engine.kv_cache.eviction",
                "early_exit and engine.kv_cache.eviction attention_sink have not been tried together",
                "Set one of them to its default",
            )
        known = (*self.chargeback.tenants, OTHER_TENANT)
        for tenant in self.serving.tenants:
            if tenant not in known:
                close = difflib.get_close_matches(tenant, known, n=1)
                mend = f"Did you mean `{close[0]}`" if close else "Add it there, or set limits for `other`"
                raise conflict(f"serving.tenants.{tenant}", f"tenant {tenant} is not in chargeback.tenants", mend)
        return self

    @property
    def longest_prompt(self) -> int:
        """Most tokens of a prompt: serving.max_prompt_tokens, else all the context but one token of answer."""
        return self.serving.max_prompt_tokens or self.engine.longest_text - 1

    @property
    def used_draft(self) -> Draft | None:
        """The draft to build: None when there is none or the proposer does not ask for it."""
        return self.draft if self.speculation.needs_draft else None

    @property
    def draft_device(self) -> Device:
        """Where the draft runs with torch_aot; where the target does without one."""
        return self.engine.device if self.draft is None or self.draft.device == "same" else self.draft.device

    @property
    def shared_cache(self) -> bool:
        """With torch_aot: the draft reads and writes the target's KV cache, since it is made of the target's own first layers."""
        return self.used_draft is not None and self.used_draft.from_target and self.draft_device == self.engine.device

    @property
    def longest_answer(self) -> int:
        """Most tokens a request may ask for: serving.max_tokens, else all the context but one token of prompt."""
        return self.serving.max_tokens or self.engine.longest_text - 1

    @property
    def default_answer(self) -> int:
        """max_tokens of a request that names none; never more than a request may ask for."""
        return min(self.serving.default_max_tokens, self.longest_answer)
