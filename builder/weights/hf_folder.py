"""A checkpoint written out as a Hugging Face folder in BF16: what other engines read, whatever the weights came from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from builder.weights.checkpoint import Checkpoint
from builder.weights.config import ModelConfig
from builder.weights.layout import expected_tensors
from builder.weights.tokenizer_files import TokenizerFiles

_CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def write_hf_folder(folder: Path, checkpoint: Checkpoint, tokenizer: TokenizerFiles, layers: int | None = None) -> ModelConfig:
    """Write config.json, model.safetensors and the tokenizer; returns the configuration written.

    `layers` keeps the first N layers with the final norm and the head (a depth cut): logits then equal hidden state N of the whole
    model through norm and head. Tensors of cut layers are left out, since loaders only warn of extra ones.
    """
    config = checkpoint.config if layers is None else dataclasses.replace(checkpoint.config, num_layers=layers)
    tensors = {name: checkpoint.tensor(name).to(torch.bfloat16).contiguous() for name in expected_tensors(config)}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write(folder / "config.json", hf_config(config))
    _write(folder / "generation_config.json", {"bos_token_id": config.bos_token_id, "eos_token_id": list(config.eos_token_ids)})
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json, encoding="utf-8")
    special = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token, "chat_template": tokenizer.chat_template}
    told = {name: value for name, value in special.items() if value is not None}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **told})
    return config


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """config.json of a configuration: the inverse of config_from_hf."""
    made: dict[str, Any] = {
        "architectures": [f"{_CLASSES[config.architecture]}ForCausalLM"],
        "model_type": config.architecture,
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
        "hidden_act": "silu",
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }
    if config.architecture in ("llama", "qwen3"):
        made["attention_bias"] = config.output_bias
    if config.architecture == "llama":
        made["mlp_bias"] = config.mlp_bias
    if config.sliding_window is not None:
        made |= {"sliding_window": config.sliding_window, "use_sliding_window": True, "max_window_layers": 0}
    elif config.architecture == "mistral":
        made["sliding_window"] = None
    if (scaling := config.rope_scaling) is not None:
        made["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    return made


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
