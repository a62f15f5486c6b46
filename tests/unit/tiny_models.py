"""Tiny random checkpoints in Hugging Face layout, so that tests need neither network nor large weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# A few merges over the 256 bytes: enough for tokens of several characters, a leading space (written U+0120) included.
MERGES = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("i", "n"), ("in", "g"), ("\u0120", "a")]
_TRANSFORMERS_CLASS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def make_tiny_model(
    folder: Path,
    architecture: str = "llama",
    vocab_size: int = 320,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    seed: int = 0,
    tie: bool = True,
    **overrides: Any,
) -> Path:
    """Write a random model, tokenizer and chat template into `folder` and return it; the same arguments give the same bytes.

    Sizes suit kernels: hidden and intermediate sizes are multiples of 32, head_dim of 16. `overrides` are keys of config.json,
    such as intermediate_size, rope_theta, rope_scaling, attention_bias or torch_dtype ("float32" or "bfloat16").
    """
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": [f"{_TRANSFORMERS_CLASS[architecture]}ForCausalLM"],
        "model_type": architecture,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tie,
        "torch_dtype": "float32",
        "bos_token_id": 256,
        "eos_token_id": 257,
        **overrides,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": 256, "eos_token_id": [257, 258]})
    save_file(random_tensors(config, seed), str(folder / "model.safetensors"), metadata={"format": "pt"})
    write_tiny_tokenizer(folder, vocab_size)
    return folder


def random_tensors(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Random tensors under Hugging Face names for a config.json. Norms are near 1, biases and matrices near 0."""
    generator = torch.Generator().manual_seed(seed)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[config["torch_dtype"]]

    def normal(*shape: int, std: float, mean: float = 0.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * std + mean).to(dtype)

    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    architecture = config["model_type"]
    qkv_bias = architecture == "qwen2" or config.get("attention_bias", False)
    output_bias = architecture != "qwen2" and config.get("attention_bias", False)
    # What a layer adds must outweigh the token's own embedding, else a tied head repeats the last token for ever;
    # embeddings of this size keep logits well apart, so that greedy tokens are not decided by rounding.
    tensors = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden, std=0.5)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes = {
            "self_attn.q_proj": (queries, hidden, qkv_bias),
            "self_attn.k_proj": (keys, hidden, qkv_bias),
            "self_attn.v_proj": (keys, hidden, qkv_bias),
            "self_attn.o_proj": (hidden, queries, output_bias),
            "mlp.gate_proj": (inner, hidden, config.get("mlp_bias", False)),
            "mlp.up_proj": (inner, hidden, config.get("mlp_bias", False)),
            "mlp.down_proj": (hidden, inner, config.get("mlp_bias", False)),
        }
        for name, (rows, columns, bias) in shapes.items():
            gain = 4.0 if rows == hidden else 1.5
            tensors[f"{layer}.{name}.weight"] = normal(rows, columns, std=gain / columns**0.5)
            if bias:
                tensors[f"{layer}.{name}.bias"] = normal(rows, std=0.1)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = normal(hidden, std=0.1, mean=1.0)
        if architecture == "qwen3":
            for name in ("q_norm", "k_norm"):
                tensors[f"{layer}.self_attn.{name}.weight"] = normal(dim, std=0.1, mean=1.0)
    tensors["model.norm.weight"] = normal(hidden, std=0.1, mean=1.0)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = normal(config["vocab_size"], hidden, std=0.5)
    return tensors


def tiny_tokenizer(vocab_size: int = 320) -> Tokenizer:
    """A byte-level BPE: the 256 bytes at ids 0..255, three special tokens at 256..258, then merges and unused fillers.

    The bytes are in the order of their printable stand-ins, so an id is not the byte's value.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, BOS, EOS, PAD, *("".join(pair) for pair in MERGES)]
    if vocab_size < len(tokens):
        raise ValueError(f"vocab_size must be at least {len(tokens)}")
    tokens += [f"<|unused_{i}|>" for i in range(vocab_size - len(tokens))]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS, PAD])
    return tokenizer


def write_tiny_tokenizer(folder: Path, vocab_size: int = 320) -> None:
    """Write tokenizer.json and tokenizer_config.json (with the chat template) into `folder`."""
    tiny_tokenizer(vocab_size).save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 512,
        },
    )


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False), encoding="utf-8")
