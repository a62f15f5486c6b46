"""A decoder pass in plain torch over an engine's own fused weights, differentiable: batched, with keys and values from elsewhere.

It computes what builder.compile.reference defines (tests compare the two); int8 rounding of the kernels' activations is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from builder.align.matrices import COMPUTE, Weights, gate_and_up
from builder.weights.config import ModelConfig
from builder.weights.rope import inverse_frequencies

KeysValues = tuple[Tensor, Tensor]  # each COMPUTE [batch, positions, kv_heads, head_dim], keys rotated


@dataclass(frozen=True)
class View:
    """Which keys a row sees: bool [batch, rows, given + rows], given keys first, then the rows' own."""

    mask: Tensor

    @classmethod
    def rounds(cls, first: Tensor, rows: int, given: int, round_length: int, offset: int, window: int | None) -> View:
        """A draft that shares the target's cache: rows come in rounds of `round_length` (the first one `offset` rows into its own).

        A row sees the given (target's) keys before its round and the draft's own keys from the round's start on, as at run time when
        every drafted token is accepted. first [batch] is the position of row 0; given keys start at position 0.
        """
        row = torch.arange(rows)
        number = (row + offset) // round_length
        round_start = (number * round_length - offset).clamp_min(0)
        position = first[:, None] + row  # [batch, rows]
        key = torch.arange(given)
        theirs = key < (first[:, None] + round_start)[:, :, None]
        own = ((number[:, None] == number) & (row[:, None] >= row)).expand(len(first), -1, -1)
        if window is not None:
            theirs = theirs & (position[:, :, None] - key < window)
            own = own & (row[:, None] - row < window)
        return cls(torch.cat([theirs, own], dim=-1))

    @classmethod
    def causal(cls, batch: int, rows: int, window: int | None) -> View:
        """Every row sees its own and earlier rows and nothing given."""
        return cls.rounds(torch.zeros(batch, dtype=torch.long), rows, 0, rows, 0, window)


def decode(
    weights: Weights, config: ModelConfig, embedded: Tensor, first: Tensor, view: View, given: list[KeysValues] | None = None
) -> tuple[Tensor, list[KeysValues]]:
    """Hidden state after the last layer, float32 [batch, rows, hidden], and each layer's own keys and values.

    embedded [batch, rows, hidden]; first [batch] is row 0's position.
    """
    hidden, made = embedded.float(), []
    rotation = _rotation(config, first, embedded.shape[1])
    mask = view.mask.unsqueeze(1)  # [batch, 1, rows, keys]
    for i in range(config.num_layers):
        layer = f"layers.{i}"
        x = _norm(weights, config, f"{layer}.attention_norm", hidden).to(COMPUTE)
        mixed, own = _attention(weights, config, layer, x, rotation, mask, None if given is None else given[i])
        hidden = hidden + _linear(weights, f"{layer}.output", mixed).float()
        x = _norm(weights, config, f"{layer}.mlp_norm", hidden).to(COMPUTE)
        gate, up = gate_and_up(_linear(weights, f"{layer}.gate_up", x))
        hidden = hidden + _linear(weights, f"{layer}.down", F.silu(gate) * up).float()
        made.append(own)
    return hidden, made


def logits(weights: Weights, config: ModelConfig, hidden: Tensor) -> Tensor:
    """float32 [..., vocab] of hidden [..., hidden]"""
    return _linear(weights, "head", _norm(weights, config, "norm", hidden).to(COMPUTE))[..., : config.vocab_size].float()


def _attention(
    weights: Weights, config: ModelConfig, layer: str, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, given: KeysValues | None
) -> tuple[Tensor, KeysValues]:
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    # outputs beyond these are padding to a whole work unit
    q, k, v = (
        _linear(weights, f"{layer}.qkv", x)[..., : (heads + 2 * kv_heads) * dim]
        .unflatten(-1, (-1, dim))
        .split((heads, kv_heads, kv_heads), dim=-2)
    )
    if config.qk_norm:
        q, k = _norm(weights, config, f"{layer}.query_norm", q.float()), _norm(weights, config, f"{layer}.key_norm", k.float())
    q, k = _rotate(q, rotation), _rotate(k, rotation)
    keys, values = (k, v) if given is None else (torch.cat([given[0], k], dim=1), torch.cat([given[1], v], dim=1))
    group = heads // kv_heads
    seen_keys, seen_values = (t.repeat_interleave(group, dim=2).transpose(1, 2) for t in (keys, values))
    # written out: the backward pass of the fused CPU attention takes 2.4 times as long at these sizes
    scores = q.transpose(1, 2) @ seen_keys.transpose(2, 3) * dim**-0.5
    shares = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (shares @ seen_values).transpose(1, 2).flatten(2), (k, v)


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    bias = weights.vector(f"{name}.bias")
    matrix = weights.matrix(name)
    if bias is not None and len(bias) < len(matrix):
        bias = F.pad(bias, (0, len(matrix) - len(bias)))
    return F.linear(x, matrix, None if bias is None else bias.to(COMPUTE))


def _norm(weights: Weights, config: ModelConfig, name: str, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weights.vector(name), config.rms_norm_eps)


def _rotation(config: ModelConfig, first: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine, float32 [batch, rows, 1, head_dim / 2]."""
    positions = (first[:, None] + torch.arange(rows)).float()
    angles = positions[:, :, None, None] * torch.tensor(inverse_frequencies(config))
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding (Su et al. 2021), halves in Hugging Face's order; COMPUTE."""
    cos, sin = rotation
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(COMPUTE)
