"""Settings of the engine loop; they come from pipeline.yaml, never from client code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TenantLimits:
    """None is no limit."""

    max_concurrent: int | None = None  # answers running and waiting
    requests_per_minute: int | None = None  # in any 60 seconds
    priority: int = 0  # the most urgent its requests may be; 0 is the most urgent of all
    share: int = 1  # under the policy `fair`, against the shares of others


@dataclass(frozen=True)
class EngineSettings:
    max_batch_size: int = 16  # sequences running at once
    max_seq_len: int = 2048  # prompt + answer, tokens
    max_num_tokens: int = 512  # rows of one target pass (prefill chunks, plain rows, verify groups together)
    max_waiting: int = 64  # requests queued beyond the running ones; more are refused
    policy: Literal["fcfs", "priority", "fair"] = "fcfs"  # who is admitted first, and who gives way last
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)  # a tenant that is not listed has no limits
    block_size: int = 16  # positions per KV block
    num_blocks: int = 1024
    prefix_caching: bool = True  # a prompt takes the keys and values of the full blocks it has in common with earlier text
    prefix_isolation: Literal["none", "tenant"] = "none"  # tenant: only with text of the same tenant
    eviction: Literal["recompute", "attention_sink"] = "recompute"  # attention_sink: a full context forgets its middle and goes on
    proposer: str = "draft_model"  # name in decoding/proposers registry; "none" is plain decoding
    max_draft_tokens: int = 4  # K
    adaptive: bool = False  # draft_limits follow acceptance and costs, up to max_draft_tokens
    early_stop: bool = False  # and drafts end where the draft model is too unsure
    rearm_after: float = 10.0  # seconds, the longest wait between two tries of drafts that did not pay
    shared_kv: bool = True  # the draft uses the target's KV cache (only a draft made from the target's own layers)
