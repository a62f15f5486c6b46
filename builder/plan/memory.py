"""Memory of a pipeline, item by item, against the host (M19). An estimate made before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from builder.plan import gpu_memory
from builder.plan.context import PlanContext
from builder.plan.memory_item import MemoryItem
from builder.plan.parameters import (
    DTYPE_BYTES,
    FLOAT32_BYTES,
    activation_width,
    cache_bytes_per_token,
    count_parameters,
    dense_bytes,
    int4_bytes,
)
from builder.spec.sizes import approximate_bytes

RESERVE = "runtime reserve"
STANDBY = "version on standby"
RUNTIME_RESERVE = 1 << 30  # bytes; allowance for Triton, three Python processes with their libraries, and buffers of the network


@dataclass(frozen=True)
class MemoryFit:
    items: tuple[MemoryItem, ...]
    capacity: int | None  # bytes of the host or container, or of one GPU; None: of a GPU that is not here
    kv_blocks: int  # blocks the cache will have
    kv_tokens: int  # positions in those blocks

    @property
    def total(self) -> int:
        return sum(item.size for item in self.items)

    @property
    def fits(self) -> bool:
        """Also while nobody knows the capacity."""
        return self.capacity is None or self.total <= self.capacity

    def to_json(self) -> dict[str, Any]:
        items = [{"name": item.name, "bytes": item.size, "how": item.how} for item in self.items]
        sums = {"total_bytes": self.total, "capacity_bytes": self.capacity, "fits": self.fits}
        return {"items": items, **sums, "kv_blocks": self.kv_blocks, "kv_tokens": self.kv_tokens}


def memory_fit(context: PlanContext) -> MemoryFit:
    """Weights, KV caches, activations and the runtime's reserve, in bytes."""
    blocks = kv_blocks(context)
    if context.device is not None:
        positions = blocks * context.spec.engine.kv_cache.block_size
        return MemoryFit(gpu_memory.items(context, positions), context.device.memory, blocks, positions)
    items = [*_target_weights(context), *_draft_weights(context), _cache(context, blocks), *_activations(context)]
    if context.spec.versions.standby:
        items.append(MemoryItem(STANDBY, sum(item.size for item in items), "all of the above again, for the version before the live one"))
    on_gpu = context.spec.engine.device == "cuda"  # a draft on the CPU is counted there too
    what = "CUDA's context and graphs" if on_gpu else "Triton, Python processes and libraries"
    items.append(MemoryItem(RESERVE, RUNTIME_RESERVE, f"{what}, a fixed allowance"))
    capacity = context.host.gpu_memory if on_gpu else context.host.memory
    return MemoryFit(tuple(items), capacity, blocks, blocks * context.spec.engine.kv_cache.block_size)


def cache_block_bytes(context: PlanContext) -> int:
    """One KV block. A draft with its own weights has a block of its own beside each of the target's."""
    per_token = cache_bytes_per_token(context.target, context.spec.target.dtype)
    if context.cut_draft is not None and not context.shared_cache:
        per_token += cache_bytes_per_token(context.cut_draft, context.spec.target.dtype)
    return per_token * context.spec.engine.kv_cache.block_size


def kv_blocks(context: PlanContext) -> int:
    """Blocks the KV budget pays for, but no more than a full batch of longest sequences can use."""
    engine = context.spec.engine
    useful = engine.max_batch_size * -(-engine.max_seq_len // engine.kv_cache.block_size)
    return min(engine.kv_cache.memory // cache_block_bytes(context), useful)


def target_read_bytes(context: PlanContext) -> int:
    """Weight bytes of one target pass, whatever its rows. The embedding is a look-up of single rows and not among them."""
    if context.device is not None:
        return gpu_memory.target_bytes(context)
    count = count_parameters(context.target)
    return dense_bytes(count.linear + count.head, context.spec.target.dtype) + count.vectors * FLOAT32_BYTES


def draft_read_bytes(context: PlanContext) -> int | None:
    """Weight bytes of one draft step; None without a draft."""
    if context.cut_draft is None or context.spec.draft is None:
        return None
    if context.device is not None:
        return gpu_memory.draft_bytes(context)
    count = count_parameters(context.cut_draft)
    return int4_bytes(count.linear + _draft_head(context), context.spec.draft.quantization) + count.vectors * FLOAT32_BYTES


def _draft_head(context: PlanContext) -> int:
    """Weights of the draft's head: a row of the hidden size for each token it may propose."""
    wanted, model = context.spec.draft.vocabulary if context.spec.draft else "all", context.draft or context.target
    return model.hidden_size * (model.vocab_size if wanted == "all" else min(wanted, model.vocab_size))


def _target_weights(context: PlanContext) -> list[MemoryItem]:
    dtype, count = context.spec.target.dtype, count_parameters(context.target)
    how = f"{count.linear + count.head:,} weights x {DTYPE_BYTES[dtype]} B ({dtype}), norms in float32"
    table = MemoryItem("target embedding", dense_bytes(count.embedding, dtype), f"{count.embedding:,} weights x {DTYPE_BYTES[dtype]} B")
    return [MemoryItem("target weights", target_read_bytes(context), how), table]


def _draft_weights(context: PlanContext) -> list[MemoryItem]:
    packed = draft_read_bytes(context)
    if packed is None or context.cut_draft is None or context.spec.draft is None:
        return []
    count, quantization = count_parameters(context.cut_draft), context.spec.draft.quantization
    how = f"{count.linear + _draft_head(context):,} weights in INT4 with a scale for each {quantization.group_size}, norms in float32"
    table = MemoryItem("draft embedding", dense_bytes(count.embedding, "bfloat16"), f"{count.embedding:,} weights x 2 B")
    return [MemoryItem("draft weights", packed, how), table]


def _cache(context: PlanContext, blocks: int) -> MemoryItem:
    cache = context.spec.engine.kv_cache
    owner = "no draft" if context.draft is None else "shared with the draft" if context.shared_cache else "target's and draft's"
    how = f"{blocks:,} blocks of {cache.block_size} positions, {owner}; at most {approximate_bytes(cache.memory)}"
    return MemoryItem("kv cache", blocks * cache_block_bytes(context), how)


def _activations(context: PlanContext) -> list[MemoryItem]:
    engine, model, drafted = context.spec.engine, context.target, context.draft_tokens
    # A checked row needs its logits and the distribution made of them; a drafted token keeps the distribution it was drawn from.
    rows = engine.max_batch_size * (2 * (drafted + 1) + drafted)
    hidden = _float32_rows("activations", engine.max_num_tokens, activation_width(model), "values")
    return [hidden, _float32_rows("logits", rows, model.vocab_size, "tokens")]


def _float32_rows(name: str, rows: int, width: int, unit: str) -> MemoryItem:
    return MemoryItem(name, rows * width * FLOAT32_BYTES, f"{rows:,} rows x {width:,} {unit} x {FLOAT32_BYTES} B")
