"""Weights of an engine folder back in rows and columns, and a draft whose scales and norms can learn.

Matrices stay fused as the engine has them (qkv, gate_up).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from builder.compile.torch_aot.packing import pack_scales
from builder.compile.torch_aot.unpacking import in_order, in_turns, stem, unpack_dense, unpack_int4, unpack_scales

COMPUTE = torch.bfloat16  # of matrix products; sums that grow (residual stream, norms, loss) are float32


class Weights(Protocol):
    """`matrix` gives COMPUTE [outputs, inputs]; `vector` a norm or bias, float32, or None when the model has none."""

    def matrix(self, name: str) -> Tensor: ...

    def vector(self, name: str) -> Tensor | None: ...


class Fixed:
    """The target's weights, or any dense engine's."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        dense = {stem(name): unpack_dense(t).to(COMPUTE) for name, t in tensors.items() if name.endswith(".weight")}
        self._matrices = {name: in_order(name, t).contiguous() for name, t in dense.items()}
        self._vectors = {name: in_order(name, t) for name, t in tensors.items() if t.ndim == 1}

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
        for name in (stem(name) for name in tensors if name.endswith(".weight")):
            scale = in_order(name, unpack_scales(tensors[f"{name}.scale"]))
            centre = 0 if f"{name}.minimum" in tensors else 8
            levels = in_order(name, unpack_int4(tensors[f"{name}.weight"])).to(COMPUTE) - centre
            self._levels[name] = levels.reshape(*scale.shape, -1)
            self._base[f"{name}.scale"] = scale.float()
            if centre == 0:
                self._base[f"{name}.minimum"] = in_order(name, unpack_scales(tensors[f"{name}.minimum"])).float()
            self._matrices[name] = torch.empty_like(levels).requires_grad_()
        self._biases = {name: in_order(name, t) for name, t in tensors.items() if name.endswith(".bias")}
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
        return {name: t.clone() if t.ndim == 1 else pack_scales(in_turns(name, t)).bfloat16() for name, t in self._current().items()}

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
