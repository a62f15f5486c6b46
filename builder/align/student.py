"""A decoder pass in plain torch over an engine's own fused weights, differentiable: batched, with keys and values from elsewhere.

It computes what builder.compile.reference defines (tests compare the two); int8 rounding of the kernels' activations is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from builder.align.functions import RmsNorm, Rotate
from builder.align.matrices import COMPUTE, Weights
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
    mask = _added(view, config)
    for i in range(config.num_layers):
        layer = f"layers.{i}"
        x = _norm(weights, config, f"{layer}.attention_norm", hidden)
        mixed, own = _attention(weights, config, layer, x, rotation, mask, None if given is None else given[i])
        hidden = hidden + _linear(weights, f"{layer}.output", mixed)
        x = _norm(weights, config, f"{layer}.mlp_norm", hidden)
        gate, up = _linear(weights, f"{layer}.gate_up", x).chunk(2, dim=-1)
        hidden = hidden + _linear(weights, f"{layer}.down", F.silu(gate) * up)
        made.append(own)
    return hidden, made


def normed(weights: Weights, config: ModelConfig, hidden: Tensor) -> Tensor:
    """What the head reads: COMPUTE [..., hidden]."""
    return _norm(weights, config, "norm", hidden)


def head(weights: Weights, config: ModelConfig) -> Tensor:
    """COMPUTE [vocab, hidden]; rows beyond are padding to a whole work unit."""
    return weights.matrix("head")[: config.vocab_size]


def logits(weights: Weights, config: ModelConfig, hidden: Tensor) -> Tensor:
    """float32 [..., vocab] of hidden [..., hidden]"""
    return F.linear(normed(weights, config, hidden), head(weights, config)).float()


def _added(view: View, config: ModelConfig) -> Tensor:
    """What hides keys when added to scores: 0 or -inf, COMPUTE [batch * kv_heads, group * rows, keys], made once for all layers."""
    batch, rows, keys = view.mask.shape
    hidden = torch.zeros(batch, 1, rows, keys, dtype=COMPUTE).masked_fill_(~view.mask.unsqueeze(1), float("-inf"))
    return hidden.expand(-1, config.num_heads, -1, -1).reshape(batch * config.num_kv_heads, -1, keys)


def _attention(
    weights: Weights, config: ModelConfig, layer: str, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, given: KeysValues | None
) -> tuple[Tensor, KeysValues]:
    """Query heads of one kv head are more rows of one product, so keys and values are never repeated."""
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    batch, rows = x.shape[:2]
    # outputs beyond these are padding to a whole work unit
    fused = _linear(weights, f"{layer}.qkv", x)[..., : (heads + 2 * kv_heads) * dim].unflatten(-1, (-1, dim))
    turning, v = fused.split((heads + kv_heads, kv_heads), dim=-2)
    if config.qk_norm:
        q, k = turning.split((heads, kv_heads), dim=-2)
        q, k = (_norm(weights, config, f"{layer}.{name}_norm", t.float()) for name, t in (("query", q), ("key", k)))
        turning = torch.cat([q, k], dim=-2)
    turned: Tensor = Rotate.apply(turning, *rotation)  # type: ignore[no-untyped-call]
    q, k = turned.split((heads, kv_heads), dim=-2)
    keys, values = (k, v) if given is None else (torch.cat([given[0], k], dim=1), torch.cat([given[1], v], dim=1))
    group = heads // kv_heads
    q = (q * dim**-0.5).view(batch, rows, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(batch * kv_heads, group * rows, dim)
    keys, values = (t.transpose(1, 2).flatten(0, 1) for t in (keys, values))  # [batch * kv_heads, positions, dim]
    # written out: the backward pass of the fused CPU attention takes 2.4 times as long at these sizes
    shares = torch.baddbmm(mask, q, keys.transpose(1, 2)).softmax(-1)
    mixed = torch.bmm(shares, values).view(batch, kv_heads, group, rows, dim).permute(0, 3, 1, 2, 4)
    return mixed.reshape(batch, rows, heads * dim), (k, v)


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    bias = weights.vector(f"{name}.bias")
    matrix = weights.matrix(name)
    if bias is not None and len(bias) < len(matrix):
        bias = F.pad(bias, (0, len(matrix) - len(bias)))
    return F.linear(x, matrix, None if bias is None else bias.to(COMPUTE))


def _norm(weights: Weights, config: ModelConfig, name: str, x: Tensor) -> Tensor:
    """COMPUTE; every model has the norms asked for."""
    normed: Tensor = RmsNorm.apply(x, weights.vector(name), config.rms_norm_eps, COMPUTE)  # type: ignore[no-untyped-call]
    return normed


def _rotation(config: ModelConfig, first: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine, float32 [batch, rows, 1, head_dim / 2]."""
    positions = (first[:, None] + torch.arange(rows)).float()
    angles = positions[:, :, None, None] * torch.tensor(inverse_frequencies(config))
    return angles.cos(), angles.sin()
