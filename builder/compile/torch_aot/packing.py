"""Weights in the order the kernels read them (kernels/model.h, Matrix): tiles of 16 outputs, 64-byte lines along the inputs."""

from __future__ import annotations

import torch

TILE = 16  # outputs of a tile
UNIT = 32  # outputs of a work unit: sizes are padded to it


def pad_outputs(weight: torch.Tensor) -> torch.Tensor:
    """Append zero rows until the number of outputs is a multiple of 32."""
    missing = -weight.shape[0] % UNIT
    return torch.cat([weight, weight.new_zeros(missing, *weight.shape[1:])]) if missing else weight


def pack_dense(weight: torch.Tensor) -> torch.Tensor:
    """[n, k] float32 or bfloat16 -> the same elements as [n/16, k/lane, 16, lane], lane = 1 (float32) or 2 (bfloat16)."""
    n, k = weight.shape
    lane = 2 if weight.dtype == torch.bfloat16 else 1
    return weight.view(n // TILE, TILE, k // lane, lane).permute(0, 2, 1, 3).contiguous()


def pack_int4(q: torch.Tensor) -> torch.Tensor:
    """[n, k] uint8 in 0..15 -> uint8 [n/16, k/8, 16, 4]: byte (output, i) holds input i in its low and input 4 + i in its high nibble."""
    n, k = q.shape
    quads = q.view(n // TILE, TILE, k // 8, 2, 4)
    return (quads[..., 0, :] | quads[..., 1, :] << 4).permute(0, 2, 1, 3).contiguous()


def pack_scales(scale: torch.Tensor) -> torch.Tensor:
    """[n, groups] -> [n/16, groups, 16]."""
    n, groups = scale.shape
    return scale.view(n // TILE, TILE, groups).transpose(1, 2).contiguous()


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up, 16 by 16 in turn: one work unit then holds 16 gate outputs and their 16 up outputs."""
    tiles = torch.stack([gate.unflatten(0, (-1, TILE)), up.unflatten(0, (-1, TILE))], dim=1)
    return tiles.flatten(0, 2).contiguous()
