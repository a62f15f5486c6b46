"""Weights of an engine folder back in rows and columns: the inverses of packing.py."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from builder.compile.torch_aot.packing import TILE


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The packed tensors of an engine folder, mapped from disk."""
    with safe_open(folder / "weights.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys() if not name.startswith("_pad.")}  # noqa: SIM118 (not a dict)


def unpack_dense(packed: Tensor) -> Tensor:
    """[n/16, k/lane, 16, lane] -> [n, k]"""
    return packed.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)


def unpack_int4(packed: Tensor) -> Tensor:
    """uint8 [n/16, k/8, 16, 4] -> uint8 [n, k] in 0..15"""
    nibbles = torch.stack([packed & 15, packed >> 4], dim=3)  # [n/16, k/8, 16, 2, 4]
    return nibbles.permute(0, 2, 1, 3, 4).flatten(2).flatten(0, 1)


def unpack_scales(packed: Tensor) -> Tensor:
    """[n/16, groups, 16] -> [n, groups]"""
    return packed.transpose(1, 2).flatten(0, 1)


def turns_apart(fused: Tensor) -> Tensor:
    """Rows of a gate_up matrix, 16 gate and 16 up in turn -> all gate rows, then all up rows: a product's halves are then views."""
    apart: Tensor = fused.unflatten(0, (-1, 2, TILE)).transpose(0, 1).flatten(0, 2)
    return apart


def turns_together(parts: Tensor) -> Tensor:
    """The inverse of turns_apart."""
    together: Tensor = parts.unflatten(0, (2, -1, TILE)).transpose(0, 1).flatten(0, 2)
    return together


def in_order(name: str, rows: Tensor) -> Tensor:
    """The rows of a matrix, or of what belongs to them, with those of gate_up apart."""
    return turns_apart(rows) if ".gate_up" in name else rows


def in_turns(name: str, rows: Tensor) -> Tensor:
    """The inverse of in_order."""
    return turns_together(rows) if ".gate_up" in name else rows


def stem(name: str) -> str:
    """Of a matrix, by the name of its weight."""
    return name.removesuffix(".weight")
