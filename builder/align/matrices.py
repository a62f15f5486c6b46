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


class Fixed:
    """The target's weights, or any dense engine's."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._matrices = {_stem(name): unpack_dense(t).to(COMPUTE) for name, t in tensors.items() if name.endswith(".weight")}
        self._vectors = {name: t for name, t in tensors.items() if t.ndim == 1}

    def matrix(self, name: str) -> Tensor:
        return self._matrices[name]

    def vector(self, name: str) -> Tensor | None:
        return self._vectors.get(name)


class Learnable:
    """An INT4 draft with integers fixed. All that learns lies in one float32 vector `parameters`, zero at first:

    scale (1 + p), minimum + scale * p and norm (1 + p), so that one learning rate suits tensors of any size.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        names = [_stem(name) for name in tensors if name.endswith(".weight")]
        self._levels: dict[str, Tensor] = {}  # COMPUTE [n, groups, group]; exact, as 0..15 and -8..7 are
        self._base: dict[str, Tensor] = {}  # float32, as built
        for name in names:
            scale = unpack_scales(tensors[f"{name}.scale"])
            centre = 0 if f"{name}.minimum" in tensors else 8
            levels = unpack_int4(tensors[f"{name}.weight"]).to(COMPUTE) - centre
            self._levels[name] = levels.view(*scale.shape, -1)
            self._base[f"{name}.scale"] = scale.float()
            if centre == 0:
                self._base[f"{name}.minimum"] = unpack_scales(tensors[f"{name}.minimum"]).float()
        self._biases = {name: t for name, t in tensors.items() if name.endswith(".bias")}
        self._base |= {name: t.clone() for name, t in tensors.items() if t.ndim == 1 and name not in self._biases}
        self.parameters = torch.zeros(sum(t.numel() for t in self._base.values()), requires_grad=True)
        self._current: dict[str, Tensor] = {}
        self.refresh()

    def refresh(self) -> None:
        """Compute scales, minimums and norms from `parameters`; call it before each step, as gradients flow through them once."""
        parts = self.parameters.split([t.numel() for t in self._base.values()])
        shift = {name: part.view(self._base[name].shape) for name, part in zip(self._base, parts, strict=True)}
        self._current = {
            name: base + self._base[name.replace(".minimum", ".scale")] * shift[name]
            if name.endswith(".minimum")
            else base * (1 + shift[name])
            for name, base in self._base.items()
        }

    def matrix(self, name: str) -> Tensor:
        weight = self._levels[name] * self._current[f"{name}.scale"].to(COMPUTE).unsqueeze(-1)
        if (minimum := self._current.get(f"{name}.minimum")) is not None:
            weight = weight + minimum.to(COMPUTE).unsqueeze(-1)
        return weight.flatten(1)

    def vector(self, name: str) -> Tensor | None:
        return self._current.get(name, self._biases.get(name))

    def packed(self) -> dict[str, Tensor]:
        """What learned, in the engine's layout: scales and minimums bfloat16, norms float32."""
        self.refresh()
        return {name: t.detach().clone() if t.ndim == 1 else pack_scales(t.detach().bfloat16()) for name, t in self._current.items()}


def gate_and_up(fused: Tensor) -> tuple[Tensor, Tensor]:
    """Columns [..., 2 * inner] of a gate_up product, 16 gate and 16 up in turn, apart."""
    turns = fused.unflatten(-1, (-1, 2, TILE))
    return turns[..., 0, :].flatten(-2), turns[..., 1, :].flatten(-2)


def _stem(name: str) -> str:
    return name.removesuffix(".weight")
