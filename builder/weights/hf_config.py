"""config.json of a Hugging Face folder, in the form of transformers 4 or 5, turned into a ModelConfig."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from builder.errors import WeightsError
from builder.weights.config import Architecture, ModelConfig, RopeScaling

SUPPORTED = get_args(Architecture)
_MEND = "Use another checkpoint"
# Keys that change the computation in ways this project does not have, with the values that switch them off.
_VARIANTS: dict[str, tuple[Any, ...]] = {
    "hidden_act": (None, "silu"),
    "partial_rotary_factor": (None, 1),
    "num_local_experts": (None, 0),
    "num_experts": (None, 0),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "attention_chunk_size": (None,),
    "num_nextn_predict_layers": (None, 0),
}


def read_hf_config(folder: Path) -> ModelConfig:
    """Read config.json and generation_config.json. Raises WeightsError for anything that cannot be computed exactly."""
    path = folder / "config.json"
    return config_from_hf(read_json(path), str(path), generation=read_json(folder / "generation_config.json", optional=True))


def config_from_hf(data: dict[str, Any], where: str, generation: dict[str, Any] | None = None) -> ModelConfig:
    """`data` is config.json, `generation` is generation_config.json; the end tokens of both count."""
    architecture = _architecture(data, where)
    _refuse_variants(data, where)
    hidden, heads = _size(data, "hidden_size", where), _size(data, "num_attention_heads", where)
    layers = _size(data, "num_hidden_layers", where)
    kv_heads = heads if architecture == "llama" and data.get("num_key_value_heads") is None else _size(data, "num_key_value_heads", where)
    default_head_dim = 128 if architecture == "qwen3" else hidden // heads
    head_dim = default_head_dim if data.get("head_dim") is None else _size(data, "head_dim", where)
    if heads % kv_heads or head_dim % 2:
        raise WeightsError(
            f"{heads} heads of {head_dim} dimensions do not share {kv_heads} key-value heads evenly", where=where, mend=_MEND
        )
    theta, scaling = _rope(data, where)
    attention_bias = bool(data.get("attention_bias", False)) and architecture in {"llama", "qwen3"}
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=_size(data, "intermediate_size", where),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_size(data, "vocab_size", where),
        max_position=_size(data, "max_position_embeddings", where),
        rms_norm_eps=_number(data.get("rms_norm_eps", 1e-6), "rms_norm_eps", where),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=architecture == "qwen2" or attention_bias,
        output_bias=attention_bias,
        mlp_bias=architecture == "llama" and bool(data.get("mlp_bias", False)),
        qk_norm=architecture == "qwen3",
        tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
        sliding_window=_sliding_window(data, architecture, layers, where),
        bos_token_id=next(iter(token_ids(data.get("bos_token_id"))), None),
        eos_token_ids=end_token_ids(data, generation),
    )


def end_token_ids(config: dict[str, Any], generation: dict[str, Any] | None) -> tuple[int, ...]:
    """End tokens of generation_config.json, then those that only config.json names."""
    return tuple(dict.fromkeys([*token_ids((generation or {}).get("eos_token_id")), *token_ids(config.get("eos_token_id"))]))


def token_ids(value: Any) -> list[int]:
    """None, one id or a list of ids, as a list."""
    ids = value if isinstance(value, list) else [value]
    return [item for item in ids if isinstance(item, int) and not isinstance(item, bool)]


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """A JSON object from a file; {} when it is optional and absent. Raises WeightsError when it cannot be read."""
    if optional and not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WeightsError(f"{path.name} is missing", where=str(path), mend="Copy the whole Hugging Face folder") from error
    except (OSError, ValueError) as error:  # ValueError covers bad JSON and bad UTF-8
        raise WeightsError(f"{path.name} cannot be read ({error})", where=str(path), mend="Copy the file again") from error
    if not isinstance(data, dict):
        raise WeightsError(f"{path.name} is not a JSON object", where=str(path), mend="Copy the file again")
    return data


def _architecture(data: dict[str, Any], where: str) -> Architecture:
    name: Any = data.get("model_type")
    if name not in SUPPORTED:
        raise WeightsError(
            f"the architecture {name!r} is not supported", where=where, mend=f"Supported architectures are {', '.join(SUPPORTED)}"
        )
    heads = [entry for entry in data.get("architectures") or [] if not str(entry).endswith("ForCausalLM")]
    if heads:
        raise WeightsError(f"{heads[0]} is not a language model", where=where, mend="Use a ...ForCausalLM checkpoint")
    architecture: Architecture = name
    return architecture


def _refuse_variants(data: dict[str, Any], where: str) -> None:
    if data.get("quantization_config"):
        method = data["quantization_config"].get("quant_method", "unknown")
        raise WeightsError(
            f"the checkpoint is quantised ({method}), which is not supported in Hugging Face form",
            where=where,
            mend="Use the BF16, F16 or F32 checkpoint, or a GGUF file of it",
        )
    for key, allowed in _VARIANTS.items():
        if data.get(key) not in allowed:
            values = " or ".join("absent" if value is None else repr(value) for value in allowed)
            raise WeightsError(f"{key} = {data[key]!r} is not supported", where=where, mend=f"Supported is {key} {values}")


def _rope(data: dict[str, Any], where: str) -> tuple[float, RopeScaling | None]:
    """transformers 4 keeps rope_theta and rope_scaling apart, transformers 5 has both in rope_parameters."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    theta = _number(rope.get("rope_theta", data.get("rope_theta", 10000.0)), "rope_theta", where)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise WeightsError("partial rotary embeddings are not supported", where=where, mend=_MEND)
    if any(isinstance(value, dict) for value in rope.values()):
        raise WeightsError("rotary parameters that differ between layers are not supported", where=where, mend=_MEND)
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise WeightsError(f"the rope type {kind!r} is not supported", where=where, mend="Supported rope types are default and llama3")
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, original = (_number(rope.get(name), f"rope {name}", where) for name in names)
    return theta, RopeScaling(factor, low, high, int(original))


def _sliding_window(data: dict[str, Any], architecture: str, layers: int, where: str) -> int | None:
    """Window in tokens when every layer slides, None when every layer is full; a mixture is refused."""
    default = 4096 if architecture == "mistral" else None
    window = data.get("sliding_window", default)
    kinds = data.get("layer_types")
    if kinds is None:
        if architecture == "llama" or (architecture != "mistral" and not data.get("use_sliding_window", False)):
            return None
        first = 0 if architecture == "mistral" else data.get("max_window_layers", 28)
        kinds = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    if set(kinds) == {"full_attention"}:
        return None
    if set(kinds) == {"sliding_attention"} and isinstance(window, int) and window > 0:
        return window
    raise WeightsError(
        f"layers of different attention ({', '.join(sorted(map(str, set(kinds))))}) are not supported",
        where=where,
        mend="Supported are full attention, or one sliding window in all layers",
    )


def _size(data: dict[str, Any], key: str, where: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise WeightsError(f"{key} is {value!r}, not a positive whole number", where=where, mend="Copy config.json again")
    return value


def _number(value: Any, key: str, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise WeightsError(f"{key} is {value!r}, not a positive number", where=where, mend="Copy config.json again")
    return float(value)
