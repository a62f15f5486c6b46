"""From a pipeline's spec to the settings of its engine loop."""

from __future__ import annotations

from builder.runtime.settings import EngineSettings, TenantLimits
from builder.spec.pipeline import PipelineSpec


def engine_settings(spec: PipelineSpec, num_blocks: int | None = None, *, shared_kv: bool = False) -> EngineSettings:
    """`num_blocks` of the KV pool; None where the cache is another's affair: then the pool holds one text of full length."""
    engine, cache, speculation = spec.engine, spec.engine.kv_cache, spec.speculation
    return EngineSettings(
        max_batch_size=engine.max_batch_size,
        max_seq_len=engine.max_seq_len,
        max_num_tokens=engine.max_num_tokens,
        max_waiting=spec.serving.max_waiting,
        policy=engine.policy,
        tenants={name: TenantLimits(**limits.model_dump()) for name, limits in spec.serving.tenants.items()},
        block_size=cache.block_size,
        num_blocks=-(-engine.max_seq_len // cache.block_size) + 1 if num_blocks is None else num_blocks,
        prefix_caching=cache.prefix_caching,
        prefix_isolation=cache.prefix_isolation,
        eviction=cache.eviction,
        proposer=speculation.proposer,
        max_draft_tokens=speculation.max_draft_tokens,
        adaptive=speculation.control.adaptive,
        early_stop=speculation.control.early_stop,
        rearm_after=speculation.control.rearm_after,
        shared_kv=shared_kv,
    )
