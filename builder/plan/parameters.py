"""How many weights a llama-like model has, and the bytes a format makes of them."""

from __future__ import annotations

from dataclasses import dataclass

from builder.spec.draft import Quantization
from builder.spec.target import Dtype
from builder.weights.config import ModelConfig

DTYPE_BYTES: dict[Dtype, int] = {"bfloat16": 2, "float32": 4}
INT4_BITS = 4
SCALE_BYTES = 2  # bfloat16, one for each group; a minimum is the same again
FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Parameters:
    """Counts. `linear` are the matrices of the layers; `head` is the vocabulary head, which an engine packs apart from the
    embedding table even when a checkpoint ties the two."""

    embedding: int
    linear: int
    vectors: int  # norms and biases
    head: int


def count_parameters(config: ModelConfig) -> Parameters:
    """Counts from the shapes in docs/architecture.md (Checkpoint names)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linear = hidden * (query + 2 * key_value) + query * hidden + 3 * hidden * inner
    vectors = 2 * hidden
    vectors += query + 2 * key_value if config.qkv_bias else 0
    vectors += hidden if config.output_bias else 0
    vectors += 2 * inner + hidden if config.mlp_bias else 0
    vectors += 2 * config.head_dim if config.qk_norm else 0
    table = config.vocab_size * hidden
    return Parameters(
        embedding=table,
        linear=config.num_layers * linear,
        vectors=config.num_layers * vectors + hidden,
        head=table,
    )


def cache_bytes_per_token(config: ModelConfig, dtype: Dtype) -> int:
    """Keys and values of one position in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * DTYPE_BYTES[dtype]


def activation_width(config: ModelConfig) -> int:
    """Values a row holds at once inside a layer: residual, norm, attention and MLP."""
    attention = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return 4 * config.hidden_size + 3 * config.intermediate_size + attention


def dense_bytes(weights: int, dtype: Dtype) -> int:
    return weights * DTYPE_BYTES[dtype]


def int4_bytes(weights: int, quantization: Quantization) -> int:
    """Packed weights, their scales and, unless symmetric, their minimums."""
    group = SCALE_BYTES if quantization.symmetric else 2 * SCALE_BYTES
    return weights * INT4_BITS // 8 + weights // quantization.group_size * group
