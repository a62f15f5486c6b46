"""A Hugging Face folder of the model's BF16 weights and its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from builder.weights.checkpoint import Checkpoint
from builder.weights.config import ModelConfig
from builder.weights.tokenizer_files import TokenizerFiles

_CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_hf_folder(folder: Path, checkpoint: Checkpoint, tokenizer: TokenizerFiles) -> None:
    """Write config.json, model.safetensors and the tokenizer's files into `folder`, which is made."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(hf_config(checkpoint.config), indent=2) + "\n", encoding="utf-8")
    save_file(checkpoint.tensors(torch.bfloat16), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json, encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """config.json of `config`: the reverse of what builder.weights reads."""
    return {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_scaling(config),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tie_word_embeddings,
        "sliding_window": config.sliding_window,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


def _rope_scaling(config: ModelConfig) -> dict[str, Any] | None:
    if config.rope_scaling is None:
        return None
    scaling = config.rope_scaling
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position,
    }
