"""Writes a tiny Hugging Face model as a GGUF file, the way llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES
from safetensors.torch import load_file

_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
RAW_KINDS = {GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K}  # the gguf package reads these but does not write them


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{_NAMES[part]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's permutation of q and k rows in files of architecture llama."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def random_blocks(kind: GGMLQuantizationType, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Random bytes as rows of quantised blocks, with small scales so that the weights stay near 0.02 in size."""
    block, size = GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    scale = np.frombuffer(np.float16(1e-4).tobytes(), dtype=np.uint8)
    if kind == GGMLQuantizationType.Q4_K:  # d, dmin: two halves first
        data[..., 0:2], data[..., 2:4] = scale, scale
    else:  # Q6_K: d, one half at the end
        data[..., -2:] = np.frombuffer(np.float16(1e-5).tobytes(), dtype=np.uint8)
    return data.reshape(rows, -1)


def write_gguf(
    path: Path,
    folder: Path,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    rope_freqs: np.ndarray | None = None,
    skip: str = "",
    **metadata: Any,
) -> dict[str, np.ndarray]:
    """Write `folder`'s model to `path` with matrices of type `kind`; vectors stay F32. Returns what each tensor, under its
    Hugging Face name, must read as. `metadata` adds or replaces keys (dots as double underscores;
    None removes one), `skip` leaves out one tensor."""
    config = json.loads((folder / "config.json").read_text())
    name = "llama" if config["model_type"] == "mistral" else config["model_type"]
    writer = GGUFWriter(path, name)
    keys: dict[str, Any] = {
        f"{name}.block_count": config["num_hidden_layers"],
        f"{name}.context_length": config["max_position_embeddings"],
        f"{name}.embedding_length": config["hidden_size"],
        f"{name}.feed_forward_length": config["intermediate_size"],
        f"{name}.attention.head_count": config["num_attention_heads"],
        f"{name}.attention.head_count_kv": config["num_key_value_heads"],
        f"{name}.attention.key_length": config["head_dim"],
        f"{name}.attention.value_length": config["head_dim"],
        f"{name}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{name}.rope.freq_base": float(config["rope_theta"]),
        **tokenizer_keys(folder),
        **{key.replace("__", "."): value for key, value in metadata.items()},
    }
    for key, value in keys.items():
        if value is not None:
            _add(writer, key, value)
    rng, expected = np.random.default_rng(0), {}
    for hf, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        as_kind = kind if values.ndim == 2 else GGMLQuantizationType.F32
        stored = random_blocks(as_kind, *values.shape, rng) if as_kind in RAW_KINDS else quants.quantize(values, as_kind)
        expected[hf] = quants.dequantize(stored, as_kind).astype(np.float32)
        if name == "llama" and ("q_proj" in hf or "k_proj" in hf):
            stored = interleave(stored, config["num_attention_heads" if "q_proj" in hf else "num_key_value_heads"])
        if gguf_name(hf) != skip:
            writer.add_tensor(gguf_name(hf), np.ascontiguousarray(stored), raw_dtype=as_kind)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def tokenizer_keys(folder: Path) -> dict[str, Any]:
    """Tokenizer metadata of the tiny byte-level tokenizer."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": vocabulary[settings["bos_token"]],
        "tokenizer.ggml.eos_token_id": vocabulary[settings["eos_token"]],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": settings["chat_template"],
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)
