"""The shape of a decoder-only transformer, as read from a checkpoint."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's frequency-dependent rope scaling (config.json `rope_scaling` of type `llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a llama-like model. `head_dim` may differ from hidden_size / num_heads (qwen3)."""

    architecture: Architecture
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    output_bias: bool = False  # bias of the attention output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm over head_dim on q and k before rope (qwen3)
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelConfig:
        scaling = data.get("rope_scaling")
        fields = dict(data, rope_scaling=RopeScaling(**scaling) if scaling else None)
        fields["eos_token_ids"] = tuple(data.get("eos_token_ids", ()))
        return cls(**fields)
