"""A transformer block as an exit head, to compare with: it cannot be served, since its keys and values would need a cache of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from builder.align.functions import RmsNorm
from builder.align.matrices import COMPUTE, Fixed
from builder.align.student import View, decode
from builder.exits.head import LearnableHead
from builder.weights.config import ModelConfig

_LAYER = "layers.0."
_MATRICES, _NORMS = ("qkv", "output", "gate_up", "down"), ("attention_norm", "mlp_norm")


class _Block(nn.Module):
    """Layer `layer` of `target` as align.matrices.Weights of a model with one; its matrices and two norms learn."""

    def __init__(self, target: Mapping[str, Tensor], layer: int) -> None:
        super().__init__()
        name = f"layers.{layer}."
        self._first = Fixed({key.replace(name, _LAYER): tensor for key, tensor in target.items() if key.startswith(name)})
        self._matrices = nn.ParameterDict({part: nn.Parameter(self._first.matrix(_LAYER + part).float()) for part in _MATRICES})
        self._norms = nn.ParameterDict({part: nn.Parameter(target[name + part].float()) for part in _NORMS})

    def matrix(self, name: str) -> Tensor:
        learned: Tensor = self._matrices[name.removeprefix(_LAYER)]
        return learned.to(COMPUTE)

    def vector(self, name: str) -> Tensor | None:
        part = name.removeprefix(_LAYER)
        learned: Tensor | None = self._norms[part] if part in _NORMS else self._first.vector(name)
        return learned


class BlockHead(LearnableHead):
    """y = norm(block(h)) head^T: at first the target's next layer, then its norm. A row attends to the answer's rows up to its own."""

    def __init__(self, target: Mapping[str, Tensor], config: ModelConfig, layer: int, rows: Tensor, seed: int) -> None:
        """`target` as read_tensors gives it; the block is its layer `layer`, from 0; rows [kept, hidden] of its head."""
        super().__init__(target["norm"], rows, 0, config.rms_norm_eps, seed)
        self._config = replace(config, num_layers=1)
        self._block = _Block(target, layer)

    def answers(self, hidden: Tensor, lengths: list[int]) -> Tensor:
        """state() of whole answers: hidden [rows, hidden] of them, so many each as `lengths` says."""
        padded = nn.utils.rnn.pad_sequence(list(hidden.split(lengths)), batch_first=True)
        view = View.causal(len(lengths), padded.shape[1], self._config.sliding_window)
        out, _ = decode(self._block, self._config, padded, torch.zeros(len(lengths), dtype=torch.long), view)
        flat = torch.cat([rows[:length] for rows, length in zip(out, lengths, strict=True)])
        normed: Tensor = RmsNorm.apply(flat, self.norm, self.eps, COMPUTE)  # type: ignore[no-untyped-call]
        return normed
