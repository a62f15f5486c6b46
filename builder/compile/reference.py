"""The model in plain torch: one sequence, full attention, no cache. It defines what every engine must compute, and trains drafts.

Differentiable in all tensors; names and shapes of tensors are those of `builder.weights.expected_tensors`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from builder.weights.config import ModelConfig
from builder.weights.rope import inverse_frequencies

Tensors = Mapping[str, Tensor]


def forward(tensors: Tensors, config: ModelConfig, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits [tokens, vocab] for token ids [tokens], computed in `dtype`; row i predicts token i + 1."""
    return head(tensors, config, hidden_states(tensors, config, ids, dtype)[-1])


def hidden_states(tensors: Tensors, config: ModelConfig, ids: Tensor, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The residual stream [tokens, hidden]: the embeddings, then after each layer (num_layers + 1 entries, before the final norm)."""
    hidden = F.embedding(ids, tensors["model.embed_tokens.weight"]).to(dtype)
    rotation = _rotation(config, len(ids), dtype)
    mask = _causal_mask(config, len(ids))
    states = [hidden]
    for i in range(config.num_layers):
        layer = f"model.layers.{i}"
        hidden = hidden + _attention(tensors, config, layer, _norm(tensors, config, f"{layer}.input_layernorm", hidden), rotation, mask)
        hidden = hidden + _mlp(tensors, layer, _norm(tensors, config, f"{layer}.post_attention_layernorm", hidden))
        states.append(hidden)
    return states


def head(tensors: Tensors, config: ModelConfig, hidden: Tensor) -> Tensor:
    """Final norm and vocabulary head on hidden [tokens, hidden], as an exit after any layer would apply them."""
    name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    normed = _norm(tensors, config, "model.norm", hidden)
    return F.linear(normed, tensors[name].to(hidden.dtype))


def _attention(tensors: Tensors, config: ModelConfig, layer: str, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """Grouped-query attention (Ainslie et al. 2023) with rotary positions on x [tokens, hidden]."""
    block, dim = f"{layer}.self_attn", config.head_dim
    q = _linear(tensors, f"{block}.q_proj", x).view(-1, config.num_heads, dim)  # [tokens, heads, head_dim]
    k = _linear(tensors, f"{block}.k_proj", x).view(-1, config.num_kv_heads, dim)
    v = _linear(tensors, f"{block}.v_proj", x).view(-1, config.num_kv_heads, dim)
    if config.qk_norm:
        q, k = _norm(tensors, config, f"{block}.q_norm", q), _norm(tensors, config, f"{block}.k_norm", k)
    q, k = _rotate(q, rotation), _rotate(k, rotation)
    group = config.num_heads // config.num_kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * dim**-0.5
    weights = scores.float().masked_fill(~mask, float("-inf")).softmax(-1).to(x.dtype)
    mixed = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
    return _linear(tensors, f"{block}.o_proj", mixed)


def _mlp(tensors: Tensors, layer: str, x: Tensor) -> Tensor:
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x))."""
    gate, up = _linear(tensors, f"{layer}.mlp.gate_proj", x), _linear(tensors, f"{layer}.mlp.up_proj", x)
    return _linear(tensors, f"{layer}.mlp.down_proj", F.silu(gate) * up)


def _norm(tensors: Tensors, config: ModelConfig, name: str, x: Tensor) -> Tensor:
    """RMS norm (Zhang & Sennrich 2019) over the last dimension, in float32 whatever the type of x."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + config.rms_norm_eps)
    return tensors[f"{name}.weight"].to(x.dtype) * scaled.to(x.dtype)


def _linear(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    bias = tensors.get(f"{name}.bias")
    return F.linear(x, tensors[f"{name}.weight"].to(x.dtype), None if bias is None else bias.to(x.dtype))


def _rotation(config: ModelConfig, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [tokens, 1, head_dim] of position times frequency, each frequency once per half."""
    angles = torch.outer(torch.arange(tokens, dtype=torch.float32), torch.tensor(inverse_frequencies(config)))
    angles = torch.cat((angles, angles), dim=-1)[:, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding (Su et al. 2021) in Hugging Face's order: dimension i turns with i + head_dim / 2."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _causal_mask(config: ModelConfig, tokens: int) -> Tensor:
    """True where query [row] may see key [column]: itself, what came before, and no further back than the sliding window."""
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
    mask = distance >= 0
    return mask if config.sliding_window is None else mask & (distance < config.sliding_window)
