"""An exit head: what turns an inner layer's state into logits. Learned in plain torch, packed for the kernels.

    u = h / rms(h);  y = norm(u + A u + b + D silu(U u)) head^T        ("tuned lens", Belrose et al. 2023, with a small MLP beside the map)

The head's rows are those of the target for the tokens it writes most often, in INT4, and one more that is learned: "another token". A
whole vocabulary head would cost more than the layers that an exit saves (21 % of all weights in SmolLM2-135M).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from builder.align.functions import Imitation, RmsNorm
from builder.align.matrices import COMPUTE
from builder.compile.torch_aot.folder import EngineInfo, write_folder
from builder.compile.torch_aot.int4 import quantise
from builder.compile.torch_aot.packing import pack_dense, pack_int4, pack_scales, pad_outputs
from builder.weights.config import ModelConfig

GROUP = 32  # inputs that share a scale


def unit(hidden: Tensor, eps: float) -> Tensor:
    """h / rms(h), float32."""
    wide = hidden.float()
    return wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()


class LearnableHead(nn.Module):
    """At first the target's own norm and head on the raw state (the MLP and the map give zero)."""

    def __init__(self, norm: Tensor, rows: Tensor, width: int, eps: float, seed: int) -> None:
        """norm [hidden]; rows [kept, hidden] of the target's head; `width` of the MLP, a multiple of 32, 0 for none."""
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        size = len(norm)
        self.eps = eps
        self.matrix = nn.Parameter(torch.zeros(size, size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.norm = nn.Parameter(norm.clone())
        self.up = nn.Parameter(torch.randn(width, size, generator=generator) / size**0.5)
        self.down = nn.Parameter(torch.zeros(size, width))
        self.another = nn.Parameter(rows.mean(0, keepdim=True))
        self.quantised = quantise(rows, GROUP, symmetric=True)
        self._rows = self.quantised.dequantise().to(COMPUTE)  # as serving will see them

    def state(self, hidden: Tensor) -> Tensor:
        """What the head's rows are multiplied with, COMPUTE [rows, hidden]."""
        u = unit(hidden, self.eps)
        y = u + F.linear(u.to(COMPUTE), self.matrix.to(COMPUTE)).float() + self.bias
        if len(self.up):
            y = y + F.linear(F.silu(F.linear(u.to(COMPUTE), self.up.to(COMPUTE))), self.down.to(COMPUTE)).float()
        normed: Tensor = RmsNorm.apply(y, self.norm, self.eps, COMPUTE)  # type: ignore[no-untyped-call]
        return normed

    def answers(self, hidden: Tensor, lengths: list[int]) -> Tensor:  # noqa: ARG002 - a head that looks at other rows needs them
        """state() of whole answers, so many rows each as `lengths` says."""
        return self.state(hidden)

    @property
    def rows(self) -> Tensor:
        """What states are multiplied with, COMPUTE [kept tokens + 1, hidden]; the last is "another token"."""
        return torch.cat([self._rows, self.another.to(COMPUTE)])

    def loss(self, hidden: Tensor, likely: Tensor, probabilities: Tensor) -> Tensor:
        """Mean cross-entropy in nats to the target's distribution over head rows: likely int64 and probabilities [rows, top]."""
        total: Tensor = Imitation.apply(self.state(hidden), self.rows, likely, probabilities)  # type: ignore[no-untyped-call]
        return total / len(hidden)

    @torch.no_grad()
    def write(self, folder: Path, config: ModelConfig, kept: Tensor, fingerprint: str) -> None:
        """An engine folder without layers, and the map's tensors beside the head's. kept int32 [kept]: ids of the head's rows."""
        last = quantise(self.another, GROUP, symmetric=True)
        q, scale = torch.cat([self.quantised.q, last.q]), torch.cat([self.quantised.scale, last.scale])
        tensors = {
            "norm": self.norm.detach().float(),
            "head.weight": pack_int4(pad_outputs(q)),
            "head.scale": pack_scales(pad_outputs(scale)),
            "vocabulary": kept.int(),
            "map.weight": pack_dense(self.matrix.detach().to(COMPUTE)),
            "map.bias": self.bias.detach().float(),
        }
        if len(self.up):
            tensors |= {"up.weight": pack_dense(self.up.detach().to(COMPUTE)), "down.weight": pack_dense(self.down.detach().to(COMPUTE))}
        info = EngineInfo("exit", replace(config, num_layers=0), "int4", "exit head", fingerprint, GROUP, True, None, len(kept))
        write_folder(folder, info, tensors)
