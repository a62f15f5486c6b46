"""Llama 3's rope scaling, forwards and back from a GGUF's table."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from builder.weights import ModelConfig, RopeScaling, inverse_frequencies
from builder.weights.rope import fit_scaling

CONFIG = ModelConfig("llama", 64, 128, 2, 4, 2, 64, 320, 512, 1e-5, 500000.0)


def table(scaling: RopeScaling, config: ModelConfig = CONFIG) -> list[float]:
    """The divisors that a GGUF stores."""
    plain = inverse_frequencies(config)
    scaled = inverse_frequencies(dataclasses.replace(config, rope_scaling=scaling))
    return torch.tensor([p / s for p, s in zip(plain, scaled, strict=True)], dtype=torch.float32).tolist()


def test_frequencies_equal_those_of_transformers() -> None:
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    theirs = LlamaConfig(head_dim=64, rope_parameters=rope | {"original_max_position_embeddings": 8192})
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, device="cpu")
    ours = inverse_frequencies(dataclasses.replace(CONFIG, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192)))
    torch.testing.assert_close(torch.tensor(ours), expected)


@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_the_published_constants_come_back_as_they_are(factor: float, head_dim: int) -> None:
    scaling = RopeScaling(factor, 1.0, 4.0, 8192)
    assert fit_scaling(table(scaling, dataclasses.replace(CONFIG, head_dim=head_dim)), CONFIG.rope_theta) == scaling


@given(factor=st.floats(1.5, 64), low=st.floats(0.5, 2), ratio=st.floats(2, 16), original=st.sampled_from([2048, 4096, 8192, 16384, 32768]))
def test_any_constants_come_back_as_the_same_frequencies(factor: float, low: float, ratio: float, original: int) -> None:
    divisors = table(RopeScaling(factor, low, low * ratio, original))
    blended = [d for d in divisors if 1.001 < d < factor * 0.999]
    assume(len(blended) >= 2)
    fitted = fit_scaling(divisors, CONFIG.rope_theta)
    assert fitted is not None
    assert table(fitted) == pytest.approx(divisors, rel=2e-4)


def test_a_table_of_another_kind_is_not_mistaken_for_llama3() -> None:
    longrope = [1.0 + 0.3 * i for i in range(32)]
    assert fit_scaling(longrope, 500000.0) is None
    assert fit_scaling([2.0] * 32, 500000.0) is None
