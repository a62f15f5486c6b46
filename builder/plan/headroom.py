"""The largest batch and the longest context whose KV cache and buffers still fit in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from builder.plan.context import PlanContext
from builder.plan.memory import memory_fit

MOST_SEQUENCES = 1 << 14
UNBOUNDED = 1 << 60  # bytes; the cache is then as large as the batch can use


@dataclass(frozen=True)
class Headroom:
    """`batch` sequences of engine.max_seq_len fit, or one batch of engine.max_batch_size of `seq_len` tokens each; 0: not one."""

    batch: int
    seq_len: int

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def headroom(context: PlanContext) -> Headroom:
    """Whatever engine.kv_cache.memory says: what the memory itself allows. The context stays within the models' positions."""
    engine = context.spec.engine
    positions = min(model.max_position for model in (context.target, context.draft) if model is not None)
    return Headroom(
        batch=_largest(MOST_SEQUENCES, lambda batch: _fits(context, batch, engine.max_seq_len)),
        seq_len=_largest(positions, lambda length: _fits(context, engine.max_batch_size, length)),
    )


def _fits(context: PlanContext, batch: int, seq_len: int) -> bool:
    engine = context.spec.engine
    cache = engine.kv_cache.model_copy(update={"memory": UNBOUNDED})
    rows = max(engine.max_num_tokens, batch * (context.draft_tokens + 1))
    wanted = {"max_batch_size": batch, "max_seq_len": seq_len, "max_num_tokens": rows, "kv_cache": cache}
    spec = context.spec.model_copy(update={"engine": engine.model_copy(update=wanted)})
    return memory_fit(dataclasses.replace(context, spec=spec)).fits


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 0..limit that fits; what fits at n fits below."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
