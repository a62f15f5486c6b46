"""The paged KV cache on a device, and attention over it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from builder.runtime.runners.cuda.grid import Grid, Layout


@dataclass(frozen=True)
class Seen:
    """What the places of one grid see: blocks [S, B], and mask bool [S, 1, G * R, B * block_size], true where a position is seen. A KV
    head's G query heads lie under each other: they read its keys once."""

    lines: int
    width: int
    blocks: Tensor
    mask: Tensor


@dataclass(frozen=True)
class PassNumbers:
    """Of all grids of a pass, on the device. positions and slots int64 [places]: where a place's key and value go, a slot being a position
    of a block; places without a row write to the scratch block."""

    positions: Tensor
    slots: Tensor
    grids: tuple[Seen, ...]


class PagedCache:
    """key and value [layers, num_blocks + 1, block_size, kv_heads, head_dim]; the last block is scratch, and nobody reads it."""

    def __init__(
        self, layers: int, num_blocks: int, block_size: int, row: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        """`row`: kv_heads and head_dim."""
        shape = (layers, num_blocks + 1, block_size, *row)
        self.scratch = num_blocks
        self.block_size = block_size
        self._key, self._value = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))

    @property
    def layers(self) -> int:
        return len(self._key)

    @property
    def row(self) -> tuple[int, int]:
        """kv_heads and head_dim"""
        return self._key.shape[3], self._key.shape[4]

    def pack(self, layout: Layout) -> Tensor:
        """The numbers of a pass in one int64 vector on the host: one copy to the device."""
        return torch.from_numpy(np.concatenate([part.ravel() for grid in layout.grids for part in (grid.positions, grid.blocks)]))

    def unpack(self, numbers: Tensor, grids: tuple[Grid, ...], queries_per_head: int) -> PassNumbers:
        """The inverse, on the device; nothing of it depends on values, so that a graph can hold it."""
        positions, slots, seen, at = [], [], [], 0
        for grid in grids:
            (lines, width), depth = grid.positions.shape, grid.blocks.shape[1]
            at_places = numbers[at : at + lines * width].view(lines, width)
            blocks = numbers[at + lines * width : at + lines * (width + depth)].view(lines, depth)
            at += lines * (width + depth)
            place = at_places.clamp_min(0)
            block = blocks.gather(1, place // self.block_size)
            block = torch.where(at_places < 0, self.scratch, block)
            slots.append((block * self.block_size + place % self.block_size).flatten())
            positions.append(place.flatten())
            mask = torch.arange(depth * self.block_size, device=numbers.device) <= place[:, :, None]  # a place without a row sees one key
            seen.append(Seen(lines, width, blocks, mask.repeat(1, queries_per_head, 1)[:, None]))
        return PassNumbers(torch.cat(positions), torch.cat(slots), tuple(seen))

    def write(self, layer: int, numbers: PassNumbers, key: Tensor, value: Tensor) -> None:
        """key and value [places, kv_heads, head_dim]"""
        for cache, made in ((self._key, key), (self._value, value)):
            cache[layer].flatten(0, 1).index_copy_(0, numbers.slots, made.to(cache.dtype))

    def attend(self, layer: int, numbers: PassNumbers, query: Tensor) -> Tensor:
        """query [places, heads, head_dim] -> the same shape: attention (Vaswani et al. 2017) with grouped queries (Ainslie et al. 2023)."""
        found, at = [], 0
        for grid in numbers.grids:
            places = grid.lines * grid.width
            found.append(self._attend(layer, grid, query[at : at + places]))
            at += places
        return torch.cat(found)

    def _attend(self, layer: int, grid: Seen, query: Tensor) -> Tensor:
        heads, dim = self.row
        # [S, heads, G * R, dim]: a KV head's queries as if they were rows
        q = query.view(grid.lines, grid.width, heads, -1, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
        key, value = (cache[layer][grid.blocks].flatten(1, 2).transpose(1, 2) for cache in (self._key, self._value))
        mixed = F.scaled_dot_product_attention(q.to(key.dtype), key, value, attn_mask=grid.mask)
        in_places: Tensor = mixed.unflatten(2, (-1, grid.width)).permute(0, 3, 1, 2, 4).reshape(query.shape)
        return in_places
