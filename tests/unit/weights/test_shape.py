"""Shapes of models whose weights are elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import WeightsError
from builder.weights.shape import known_models, read_shape
from tests.unit.tiny_models import make_tiny_model


@pytest.mark.parametrize("name", list(known_models()))
def test_every_known_model_has_a_configuration_that_can_be_computed(name: str) -> None:
    shape = read_shape(name, Path())
    assert shape.tokenizer is not None
    assert shape.config.hidden_size % 64 == 0


@pytest.mark.parametrize(
    ("name", "billions"), [("llama-2-7b", 6.74), ("llama-3.1-8b", 8.03), ("llama-3.3-70b", 70.6), ("qwen3-8b", 8.19), ("llama-68m", 0.068)]
)
def test_a_known_model_has_as_many_weights_as_its_name_says(name: str, billions: float) -> None:
    from builder.plan.parameters import count_parameters

    config = read_shape(name, Path()).config
    count = count_parameters(config)
    head = 0 if config.tie_word_embeddings else count.head
    assert (count.embedding + count.linear + count.vectors + head) / 1e9 == pytest.approx(billions, rel=0.01)


def test_models_of_one_family_have_one_tokenizer() -> None:
    assert read_shape("llama-3.1-8b", Path()).tokenizer == read_shape("llama-3.3-70b", Path()).tokenizer
    assert read_shape("llama-3.1-8b", Path()).tokenizer != read_shape("qwen3-8b", Path()).tokenizer


def test_a_config_json_counts_with_the_tokenizer_beside_it(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    shape = read_shape("model/config.json", tmp_path)
    assert shape.config.num_layers == 2 and shape.tokenizer is not None
    (tmp_path / "model" / "tokenizer.json").unlink()
    assert read_shape("model/config.json", tmp_path).tokenizer is None


@pytest.mark.parametrize(("name", "mend"), [("llama-3.1-8B-instruct", "llama-3.1-8b"), ("zzz", "qwen3-8b")])
def test_an_unknown_model_is_refused_with_the_nearest_name(name: str, mend: str) -> None:
    with pytest.raises(WeightsError, match=mend):
        read_shape(name, Path())
