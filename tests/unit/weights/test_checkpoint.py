"""Opening weights: what is read, what is refused, and with which words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from builder.errors import TandemError, WeightsError
from builder.weights import ModelConfig, expected_tensors, open_checkpoint, open_tokenizer
from tests.unit.tiny_models import make_tiny_model
from tests.unit.weights.tiny_gguf import write_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model")


@pytest.fixture
def gguf(folder: Path) -> Path:
    write_gguf(folder / "model.gguf", folder, GGMLQuantizationType.Q8_0)
    return folder / "model.gguf"


def refusal(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        open_checkpoint(str(path), path.parent)
    assert caught.value.where and caught.value.mend
    return str(caught.value)


def change_tensors(folder: Path, **tensors: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    merged = load_file(file) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({name: tensor for name, tensor in merged.items() if tensor is not None}, file)


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    halves = {f"model-0000{i}-of-00002.safetensors": dict(sorted(tensors.items())[i - 1 :: 2]) for i in (1, 2)}
    for name, half in halves.items():
        save_file(half, folder / name)
    weight_map = {tensor: name for name, half in halves.items() for tensor in half}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def test_names_are_those_the_configuration_expects(folder: Path) -> None:
    checkpoint = open_checkpoint("model", folder.parent)
    assert checkpoint.source == "model"
    assert checkpoint.names() == list(expected_tensors(checkpoint.config))
    assert all(tuple(checkpoint.tensor(name).shape) == shape for name, shape in expected_tensors(checkpoint.config).items())


def test_an_unknown_name_is_refused(folder: Path) -> None:
    with pytest.raises(WeightsError, match=r"no tensor lm_head\.weight"):
        open_checkpoint(str(folder), folder).tensor("lm_head.weight")


def test_the_configuration_survives_json(folder: Path) -> None:
    config = open_checkpoint(str(folder), folder).config
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_the_fingerprint_does_not_depend_on_how_the_weights_are_cut(folder: Path) -> None:
    whole = open_checkpoint(str(folder), folder).fingerprint
    shard(folder)
    assert open_checkpoint(str(folder), folder).fingerprint == whole


def test_the_fingerprint_changes_with_one_weight(folder: Path) -> None:
    before = open_checkpoint(str(folder), folder).fingerprint
    norm = load_file(folder / "model.safetensors")["model.norm.weight"]
    norm[0] += 1e-6
    change_tensors(folder, model__norm__weight=norm)
    assert open_checkpoint(str(folder), folder).fingerprint != before


def test_the_fingerprint_changes_with_the_configuration(folder: Path) -> None:
    before = open_checkpoint(str(folder), folder).fingerprint
    change_config(folder, rope_theta=20000.0)
    assert open_checkpoint(str(folder), folder).fingerprint != before


def test_the_fingerprint_of_a_gguf_file_changes_with_one_byte(gguf: Path) -> None:
    before = open_checkpoint(str(gguf), gguf).fingerprint
    data = bytearray(gguf.read_bytes())
    data[-40] ^= 1
    gguf.write_bytes(data)
    os.utime(gguf, ns=(1, 1))
    assert open_checkpoint(str(gguf), gguf).fingerprint != before


def test_a_copy_of_the_tied_head_is_ignored(folder: Path) -> None:
    change_tensors(folder, lm_head__weight=torch.zeros(320, 64))
    assert "lm_head.weight" not in open_checkpoint(str(folder), folder).names()


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, model__norm__weight=None)
    assert "model.norm.weight is missing" in refusal(folder)


def test_a_damaged_layer_count_is_refused_before_it_takes_memory(folder: Path) -> None:
    change_config(folder, num_hidden_layers=10**12)
    assert "asks for 1000000000000 layers, but there are only" in refusal(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder: Path) -> None:
    change_tensors(folder, model__norm__weight=torch.ones(32))
    assert "model.norm.weight has shape [32], but the configuration asks for [64]" in refusal(folder)


def test_a_tensor_the_model_would_not_use_is_refused(folder: Path) -> None:
    change_tensors(folder, model__layers__0__self_attn__q_proj__lora_A__weight=torch.ones(2, 64))
    assert "lora_A.weight does not belong" in refusal(folder)


def test_a_type_that_is_not_supported_is_named(folder: Path) -> None:
    change_tensors(folder, model__norm__weight=torch.ones(64, dtype=torch.float8_e4m3fn))
    assert "type F8_E4M3" in refusal(folder) and "Supported types are F32, F16, BF16" in refusal(folder)


@pytest.mark.parametrize("keep", [5, 100, 3000, -1])
def test_a_cut_safetensors_file_is_named(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "model.safetensors is truncated or corrupt" in refusal(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "the shard model-00002-of-00002.safetensors is missing" in refusal(folder)


def test_an_index_that_leaves_the_folder_is_refused(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    assert "outside its folder" in refusal(folder)


def test_a_pickle_is_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickled weights are not read" in refusal(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_a_git_lfs_pointer_is_recognised(folder: Path, gguf: Path, name: str) -> None:
    (folder / name).write_text("version https://git-lfs\noid sha256:0\nsize 1\n")
    assert "Git LFS pointer" in refusal(folder if name != gguf.name else gguf)


def test_a_folder_without_weights_or_configuration_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "holds no model.safetensors" in refusal(folder)
    (folder / "config.json").unlink()
    assert "config.json is missing" in refusal(folder)


def test_an_empty_file_is_named(gguf: Path) -> None:
    gguf.write_bytes(b"")
    assert "model.gguf is empty" in refusal(gguf)


def test_a_gguf_tensor_type_that_is_not_supported_is_named(folder: Path) -> None:
    write_gguf(folder / "q5.gguf", folder, GGMLQuantizationType.Q5_0)
    message = refusal(folder / "q5.gguf")
    assert "has type Q5_0" in message and "Supported types are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K" in message


def test_a_missing_gguf_tensor_is_named(folder: Path) -> None:
    write_gguf(folder / "cut.gguf", folder, skip="blk.1.ffn_up.weight")
    assert "model.layers.1.mlp.up_proj.weight is missing" in refusal(folder / "cut.gguf")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"llama__rope__dimension_count": 8}, "partial rotary"),
        ({"llama__expert_count": 8}, "mixtures of experts"),
        ({"llama__rope__scaling__type": "yarn"}, "rope scaling 'yarn'"),
        ({"llama__attention__head_count_kv": [2, 1]}, "differs between layers"),
        ({"llama__block_count": "two"}, "not a positive whole number"),
        ({"general__alignment": 0}, "alignment"),
    ],
)
def test_gguf_metadata_that_cannot_be_computed_is_refused(folder: Path, metadata: dict[str, object], words: str) -> None:
    write_gguf(folder / "other.gguf", folder, **metadata)
    assert words in refusal(folder / "other.gguf")


def test_another_gguf_architecture_is_refused_naming_the_supported_ones(folder: Path, gguf: Path) -> None:
    gguf.write_bytes(gguf.read_bytes().replace(b"llama", b"gemma", 1))
    assert "'gemma' is not supported" in refusal(gguf) and "llama, qwen2, qwen3" in refusal(gguf)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = make_tiny_model(tmp_path_factory.mktemp("gguf"), layers=1)
    write_gguf(folder / "model.gguf", folder)
    return (folder / "model.gguf").read_bytes()


@given(keep=st.floats(0, 0.999))
@example(keep=0.5)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_gguf_file_cut_anywhere_is_called_truncated(tmp_path: Path, gguf_bytes: bytes, keep: float) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(gguf_bytes[: max(1, int(keep * len(gguf_bytes)))])
    assert "truncated, corrupt or not a GGUF file" in refusal(file)


@given(place=st.integers(0, 11000), value=st.integers(0, 255))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_gguf_header_never_escapes_as_another_error(tmp_path: Path, gguf_bytes: bytes, place: int, value: int) -> None:
    damaged = bytearray(gguf_bytes)
    damaged[place] = value
    file = tmp_path / f"{place}-{value}.gguf"
    file.write_bytes(damaged)
    try:
        open_checkpoint(str(file), tmp_path)
        open_tokenizer(str(file), tmp_path)
    except TandemError:
        pass
    finally:
        file.unlink()
