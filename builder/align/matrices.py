"""Weights of an engine folder back in rows and columns, and a draft whose scales and norms can learn.

Inverses of builder.compile.torch_aot.packing. Matrices stay fused as the engine has them (qkv, gate_up).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from builder.compile.torch_aot.packing import TILE, pack_scales

COMPUTE = torch.bfloat16  # of matrix products; sums that grow (residual stream, norms, loss) are float32


class Weights(Protocol):
    """`matrix` gives COMPUTE [outputs, inputs]; `vector` a norm or bias, float32, or None when the model has none."""

    def matrix(self, name: str) -> Tensor: ...

    def vector(self, name: str) -> Tensor | None: ...


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


class Fixed:
    """The target's weights, or any dense engine's."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        dense = {_stem(name): unpack_dense(t).to(COMPUTE) for name, t in tensors.items() if name.endswith(".weight")}
        self._matrices = {name: _ordered(name, t).contiguous() for name, t in dense.items()}
        self._vectors = {name: _ordered(name, t) for name, t in tensors.items() if t.ndim == 1}

    def matrix(self, name: str) -> Tensor:
        return self._matrices[name]

    def vector(self, name: str) -> Tensor | None:
        return self._vectors.get(name)


class Learnable:
    """An INT4 draft with integers fixed. All that learns lies in one float32 vector `parameters`, zero at first:

    scale (1 + p), minimum + scale * p and norm (1 + p), so that one learning rate suits tensors of any size. A step is `refresh`, any
    number of passes with their backward passes, then `collect`: weights are made once a step, and so is the gradient of their scales.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._levels: dict[str, Tensor] = {}  # COMPUTE [n, groups, group]; exact, as 0..15 and -8..7 are
        self._base: dict[str, Tensor] = {}  # float32, as built
        self._matrices: dict[str, Tensor] = {}  # COMPUTE [n, k], leaves
        for name in (_stem(name) for name in tensors if name.endswith(".weight")):
            scale = _ordered(name, unpack_scales(tensors[f"{name}.scale"]))
            centre = 0 if f"{name}.minimum" in tensors else 8
            levels = _ordered(name, unpack_int4(tensors[f"{name}.weight"])).to(COMPUTE) - centre
            self._levels[name] = levels.reshape(*scale.shape, -1)
            self._base[f"{name}.scale"] = scale.float()
            if centre == 0:
                self._base[f"{name}.minimum"] = _ordered(name, unpack_scales(tensors[f"{name}.minimum"])).float()
            self._matrices[name] = torch.empty_like(levels).requires_grad_()
        self._biases = {name: _ordered(name, t) for name, t in tensors.items() if name.endswith(".bias")}
        self._norms = {name: t.clone().requires_grad_() for name, t in tensors.items() if t.ndim == 1 and name not in self._biases}
        self._base |= {name: t.detach().clone() for name, t in self._norms.items()}
        self.parameters = torch.zeros(sum(t.numel() for t in self._base.values()), requires_grad=True)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Make weights and norms of `parameters`, without gradients."""
        current = self._current()
        for name, matrix in self._matrices.items():
            weight = matrix.view(self._levels[name].shape)
            torch.mul(self._levels[name], current[f"{name}.scale"].to(COMPUTE).unsqueeze(-1), out=weight)
            if (minimum := current.get(f"{name}.minimum")) is not None:
                weight += minimum.to(COMPUTE).unsqueeze(-1)
            matrix.grad = None
        for name, norm in self._norms.items():
            norm.copy_(current[name])
            norm.grad = None

    @torch.no_grad()
    def collect(self, share: float) -> None:
        """Give `parameters` its gradient, `share` times what the backward passes since `refresh` left in weights and norms."""
        found: dict[str, Tensor] = {}
        for name, norm in self._norms.items():
            found[name] = self._base[name] * _gradient(norm)
        for name, matrix in self._matrices.items():
            g, scale = _gradient(matrix).view(self._levels[name].shape), self._base[f"{name}.scale"]
            found[f"{name}.scale"] = scale * (g * self._levels[name]).sum(-1, dtype=torch.float32)
            if f"{name}.minimum" in self._base:
                found[f"{name}.minimum"] = scale * g.sum(-1, dtype=torch.float32)
        self.parameters.grad = torch.cat([found[name].flatten() for name in self._base]).mul_(share)

    def matrix(self, name: str) -> Tensor:
        return self._matrices[name]

    def vector(self, name: str) -> Tensor | None:
        return self._norms.get(name, self._biases.get(name))

    @torch.no_grad()
    def packed(self) -> dict[str, Tensor]:
        """What learned, in the engine's layout: scales and minimums bfloat16, norms float32."""
        return {
            name: t.clone() if t.ndim == 1 else pack_scales(turns_together(t) if _in_turns(name) else t).bfloat16()
            for name, t in self._current().items()
        }

    def _current(self) -> dict[str, Tensor]:
        parts = self.parameters.detach().split([t.numel() for t in self._base.values()])
        shift = {name: part.view(self._base[name].shape) for name, part in zip(self._base, parts, strict=True)}
        return {
            name: base + self._base[name.replace(".minimum", ".scale")] * shift[name]
            if name.endswith(".minimum")
            else base * (1 + shift[name])
            for name, base in self._base.items()
        }


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _in_turns(name: str) -> bool:
    return ".gate_up" in name


def _ordered(name: str, rows: Tensor) -> Tensor:
    return turns_apart(rows) if _in_turns(name) else rows


def _stem(name: str) -> str:
    return name.removesuffix(".weight")
