"""What the runners of an engine folder have beside a Runner's passes, whatever the device."""

from __future__ import annotations

from typing import Protocol

import torch

from builder.compile.torch_aot.folder import EngineInfo
from builder.runtime.runner import GreedyRunner
from builder.weights.config import ModelConfig


class LoadedRunner(GreedyRunner, Protocol):
    info: EngineInfo

    @property
    def instruction_set(self) -> str:
        """Of the processor, or the GPU's name."""
        ...

    @property
    def embedding(self) -> torch.Tensor | None:
        """[vocab_size, hidden_size]; None: it has none of its own and was given none."""
        ...

    def share_embedding(self, embedding: torch.Tensor) -> None:
        """Look tokens up in another runner's embedding: an engine built without its own."""
        ...

    def share_cache(self, owner: LoadedRunner) -> None:
        """Use the first layers of another runner's cache. EngineError unless both are of one kind and made from the same layers."""
        ...

    def products(self, rows: int) -> None:
        """Every matrix product of a pass over dummy rows and nothing else: the limit that `bench` compares a step with."""
        ...


def cache_bytes_per_block(config: ModelConfig, dtype: torch.dtype, block_size: int) -> int:
    """Of keys and values of all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * block_size * dtype.itemsize
