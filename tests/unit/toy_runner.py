"""A tiny transformer in float64 over a paged cache: every logit hangs on all earlier tokens through the cache.

Blocks start as NaN and can be poisoned again, so a key read before it was written, or after its block was given
back, changes tokens instead of passing unseen.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from builder.runtime.runner import Rows
from builder.weights.config import ModelConfig


class ToyCache:
    """keys_values [layers, 2, slots, hidden]; two runners may hold the same one."""

    def __init__(self) -> None:
        self.block_size = 0
        self.keys_values = torch.empty(0)


class ToyRunner:
    """`noise` moves the weights away from those of the same seed: a draft that is often, not always, right."""

    def __init__(
        self,
        vocab: int = 11,
        *,
        hidden: int = 8,
        layers: int = 2,
        seed: int = 0,
        noise: float = 0.0,
        cache: ToyCache | None = None,
        sharpness: float = 3.0,
    ) -> None:
        self.config = ModelConfig("llama", hidden, hidden, layers, 1, 1, hidden, vocab, 512, 1e-5, 1e4)
        self.cache = cache or ToyCache()
        self.shares = cache is not None
        self.passes: list[int] = []  # rows of each pass
        self.head_rows: list[int] = []
        self.layers_run = 0
        weights = self._random(seed)
        other = self._random(seed + 1000)
        mixed = [a + noise * b for a, b in zip(weights, other, strict=True)]
        self.embedding, self.place, self.output, self.layer = mixed[0], mixed[1], mixed[2] * sharpness, mixed[3]

    def _random(self, seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        h, v, n = self.config.hidden_size, self.config.vocab_size, self.config.num_layers
        shapes = [(v, h), (512, h), (h, v), (n, 4, h, h)]
        scales = [1.0, 1.0, 1.0, 1.5 / math.sqrt(h)]
        return [torch.randn(*shape, generator=generator, dtype=torch.float64) * scale for shape, scale in zip(shapes, scales, strict=True)]

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        shape = (self.config.num_layers, 2, num_blocks * block_size, self.config.hidden_size)
        self.cache.block_size = block_size
        self.cache.keys_values = torch.full(shape, torch.nan, dtype=torch.float64)

    def cache_bytes_per_block(self, block_size: int) -> int:
        return 8 * 2 * self.config.num_layers * block_size * self.config.hidden_size

    def embed(self, rows: Rows) -> Tensor:
        self.passes.append(len(rows.token_ids))
        return self.embedding[rows.token_ids.long()] + self.place[rows.positions.long()]

    def layers(self, hidden: Tensor, rows: Rows, start: int, stop: int) -> Tensor:
        size = self.cache.block_size
        tables, owner, position = rows.block_tables.long(), rows.sequence.long(), rows.positions.long()
        everywhere = torch.arange(int(position.max()) + 1)
        slots = tables[owner][:, everywhere // size] * size + everywhere % size  # [rows, positions]
        visible = everywhere <= position[:, None]
        own = slots[torch.arange(len(position)), position]
        assert bool((slots[visible] >= 0).all()), "a row reads a position without a block"
        self.layers_run += stop - start
        for index in range(start, stop):
            query, key, value, mix = self.layer[index]
            self.cache.keys_values[index, 0, own] = hidden @ key
            self.cache.keys_values[index, 1, own] = hidden @ value
            keys, values = self.cache.keys_values[index, :, slots.clamp_min(0)].unbind(0)
            scores = torch.einsum("rh,rph->rp", hidden @ query, keys).masked_fill(~visible, -torch.inf)
            values = values.masked_fill(~visible[..., None], 0.0)
            attended = torch.einsum("rp,rph->rh", scores.softmax(-1), values)
            hidden = torch.tanh(hidden + attended @ mix) * 2.0
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        self.head_rows.append(len(hidden))
        return hidden @ self.output

    def poison(self, blocks: list[int]) -> None:
        """What lay in these blocks must never be read again."""
        for block in blocks:
            self.cache.keys_values[:, :, block * self.cache.block_size : (block + 1) * self.cache.block_size] = torch.nan


def toy_pair(
    *, shared_kv: bool, noise: float = 0.3, vocab: int = 11, seed: int = 0, sharpness: float = 3.0, layers: int = 2
) -> tuple[ToyRunner, ToyRunner]:
    """A target and a draft of its family. With own caches the draft has one layer only, so the caches cannot be mixed up."""
    target = ToyRunner(vocab, seed=seed, sharpness=sharpness, layers=layers)
    if shared_kv:
        return target, ToyRunner(vocab, seed=seed, noise=noise, cache=target.cache, sharpness=sharpness, layers=layers)
    return target, ToyRunner(vocab, layers=1, seed=seed, noise=noise, sharpness=sharpness)
