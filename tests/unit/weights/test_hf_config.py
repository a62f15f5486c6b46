"""config.json in both of transformers' forms, and what it must not contain."""

from __future__ import annotations

from typing import Any

import pytest

from builder.errors import WeightsError
from builder.weights.config import RopeScaling
from builder.weights.hf_config import config_from_hf

BASE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
}  # fmt: skip
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def test_both_forms_of_rope_settings_say_the_same() -> None:
    four = config_from_hf(BASE | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}, "config.json")
    five = config_from_hf(BASE | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}}, "config.json")
    assert four == five
    assert five.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
    assert five.rope_theta == 5e5


def test_head_dim_follows_from_the_heads_unless_it_is_given() -> None:
    assert config_from_hf(BASE, "").head_dim == 16
    assert config_from_hf(BASE | {"head_dim": None}, "").head_dim == 16
    assert config_from_hf(BASE | {"head_dim": 32}, "").head_dim == 32
    assert config_from_hf(BASE | {"model_type": "qwen3"}, "").head_dim == 128  # transformers' default for qwen3


def test_end_tokens_of_both_files_count_once() -> None:
    config = config_from_hf(BASE | {"eos_token_id": [2, 7]}, "", generation={"eos_token_id": 7})
    assert config.eos_token_ids == (7, 2)


def test_a_sliding_window_counts_only_where_it_is_switched_on() -> None:
    assert config_from_hf(BASE | {"sliding_window": 128}, "").sliding_window is None  # llama has none
    assert config_from_hf(BASE | {"model_type": "mistral"}, "").sliding_window == 4096  # transformers' default for mistral
    assert config_from_hf(BASE | {"model_type": "mistral", "sliding_window": None}, "").sliding_window is None
    qwen = BASE | {"model_type": "qwen2", "sliding_window": 128}
    assert config_from_hf(qwen | {"use_sliding_window": False}, "").sliding_window is None
    assert config_from_hf(qwen | {"use_sliding_window": True, "max_window_layers": 0}, "").sliding_window == 128
    assert config_from_hf(qwen | {"use_sliding_window": True, "max_window_layers": 2}, "").sliding_window is None
    assert config_from_hf(qwen | {"layer_types": ["full_attention"] * 2, "use_sliding_window": True}, "").sliding_window is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gemma3"}, "'gemma3' is not supported. Supported architectures are llama, mistral, qwen2, qwen3"),
        ({"model_type": None}, "None is not supported"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "is not a language model"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised (awq)"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear' is not supported. Supported rope types are default"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope low_freq_factor is None"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ between layers"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported. Supported is hidden_act absent or 'silu'"),
        ({"num_local_experts": 8}, "num_local_experts = 8"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_key_value_heads": 3}, "do not share 3 key-value heads"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}, "different attention"),
        ({"model_type": "qwen2", "num_key_value_heads": None}, "num_key_value_heads is None"),
    ],
)
def test_what_cannot_be_computed_exactly_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(WeightsError) as caught:
        config_from_hf(BASE | change, "config.json")
    assert words in str(caught.value) and caught.value.where == "config.json"
