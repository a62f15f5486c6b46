"""GGUF metadata turned into a ModelConfig."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType

from builder.errors import WeightsError
from builder.weights.config import Architecture, ModelConfig, RopeScaling
from builder.weights.gguf_file import GgufFile
from builder.weights.rope import fit_scaling

# llama.cpp files Mistral models under `llama`; the mathematics is the same.
SUPPORTED: dict[str, Architecture] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_MEND = "Use another checkpoint"


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """Sizes from metadata, biases, norms and the tied head from which tensors are there.

    Raises WeightsError for another architecture, experts, partial rotary embeddings or another rope scaling than Llama 3's.
    """
    where, name = str(file.path), file.require("general.architecture")
    if name not in SUPPORTED:
        raise WeightsError(
            f"the architecture {name!r} is not supported",
            where=where,
            mend=f"Supported architectures are {', '.join(SUPPORTED)} (mistral is stored as llama)",
        )
    if "token_embd.weight" not in file.tensors:
        raise WeightsError("the tensor token_embd.weight is missing", where=where, mend="Copy the file again")
    hidden, heads = _size(file, f"{name}.embedding_length"), _size(file, f"{name}.attention.head_count")
    head_dim = _head_dim(file, name, hidden // heads)
    theta = _number(file, f"{name}.rope.freq_base", 10000.0)
    if file.get(f"{name}.expert_count", 0):
        raise WeightsError("mixtures of experts are not supported", where=where, mend=_MEND)

    def has(tensor: str) -> bool:
        return f"blk.0.{tensor}" in file.tensors

    return ModelConfig(
        architecture=SUPPORTED[name],
        hidden_size=hidden,
        intermediate_size=_size(file, f"{name}.feed_forward_length"),
        num_layers=_size(file, f"{name}.block_count"),
        num_heads=heads,
        num_kv_heads=_size(file, f"{name}.attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        max_position=_size(file, f"{name}.context_length"),
        rms_norm_eps=_number(file, f"{name}.attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=_scaling(file, name, theta, head_dim),
        qkv_bias=has("attn_q.bias"),
        output_bias=has("attn_output.bias"),
        mlp_bias=has("ffn_up.bias"),
        qk_norm=has("attn_q_norm.weight"),
        tie_word_embeddings="output.weight" not in file.tensors,
        sliding_window=file.get(f"{name}.attention.sliding_window") or None,
        bos_token_id=file.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=gguf_end_token_ids(file),
    )


def gguf_end_token_ids(file: GgufFile) -> tuple[int, ...]:
    """The declared ends of text, of turn and of message."""
    ids = (file.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS)
    return tuple(dict.fromkeys(int(token_id) for token_id in ids if token_id is not None))


def _head_dim(file: GgufFile, name: str, default: int) -> int:
    head_dim = _size(file, f"{name}.attention.key_length", default)
    for key, what in (("attention.value_length", "values narrower than keys"), ("rope.dimension_count", "partial rotary embeddings")):
        if file.get(f"{name}.{key}", head_dim) != head_dim:
            raise WeightsError(f"{what} ({name}.{key} is not {head_dim}) are not supported", where=str(file.path), mend=_MEND)
    return head_dim


def _scaling(file: GgufFile, name: str, theta: float, head_dim: int) -> RopeScaling | None:
    """Llama 3's scaling is stored as a table of divisors, the tensor rope_freqs.weight [head_dim / 2]."""
    where = str(file.path)
    kind = file.get(f"{name}.rope.scaling.type", "none")
    if kind != "none":
        raise WeightsError(f"the rope scaling {kind!r} is not supported", where=where, mend="Supported are none and Llama 3's")
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    if tensor.kind != GGMLQuantizationType.F32 or tensor.shape != (head_dim // 2,):
        raise WeightsError(f"rope_freqs.weight is not float32 [{head_dim // 2}]", where=where, mend="Convert the model to GGUF again")
    divisors = tensor.data.view(np.float32).tolist()
    if all(value == 1.0 for value in divisors):
        return None
    scaling = fit_scaling(divisors, theta)
    if scaling is None:
        raise WeightsError("rope_freqs.weight does not follow Llama 3's rope scaling", where=where, mend=_MEND)
    return scaling


def _size(file: GgufFile, key: str, default: int | None = None) -> int:
    value: Any = file.require(key) if default is None else file.get(key, default)
    if not isinstance(value, int) or value <= 0:
        what = "differs between layers" if isinstance(value, list) else f"is {value!r}, not a positive whole number"
        raise WeightsError(f"{key} {what}, which is not supported", where=str(file.path), mend=_MEND)
    return value


def _number(file: GgufFile, key: str, default: float | None = None) -> float:
    value: Any = file.require(key) if default is None else file.get(key, default)
    if not isinstance(value, int | float) or value <= 0:
        raise WeightsError(f"{key} is {value!r}, not a positive number", where=str(file.path), mend=_MEND)
    return float(value)
