"""The reference model against transformers, from every source of weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from builder.compile.reference import forward, head, hidden_states
from builder.weights import Checkpoint, open_checkpoint
from tests.unit.tiny_models import make_tiny_model
from tests.unit.weights.tiny_gguf import write_gguf

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
TYPE = GGMLQuantizationType
MODELS: dict[str, dict[str, Any]] = {
    "llama tied": {"architecture": "llama"},
    "llama untied with biases": {"architecture": "llama", "tie": False, "attention_bias": True, "mlp_bias": True},
    "llama with one key-value head": {"architecture": "llama", "kv_heads": 1},
    "llama with odd head_dim": {"architecture": "llama", "head_dim": 48, "heads": 2},
    "llama3 rope, transformers 4": {"rope_theta": 500000.0, "head_dim": 32, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "llama3 rope, old key": {"rope_theta": 500000.0, "head_dim": 32, "rope_scaling": {"type": "llama3", **LLAMA3}},
    "llama3 rope, transformers 5": {"head_dim": 32, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}},
    "mistral": {"architecture": "mistral", "tie": False, "sliding_window": None},
    "mistral with a sliding window": {"architecture": "mistral", "sliding_window": 7},
    "qwen2 with biases": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3", "head_dim": 32, "tie": False},
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def some_ids(tokens: int = 40, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 320, (tokens,), generator=torch.Generator().manual_seed(seed))


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def assert_same_logits(model: torch.nn.Module, checkpoint: Checkpoint) -> None:
    ids = some_ids()
    with torch.no_grad():
        expected = model(ids[None]).logits[0]
        torch.testing.assert_close(forward(checkpoint.tensors(), checkpoint.config, ids), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS.keys())
def test_logits_equal_those_of_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = make_tiny_model(tmp_path, **settings)
    assert_same_logits(transformers_model(folder), open_checkpoint(str(folder), tmp_path))


def test_sharded_weights_give_the_same_logits(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "whole")
    transformers_model(folder).save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    assert_same_logits(transformers_model(folder), open_checkpoint("sharded", tmp_path))


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_gguf_file_gives_the_logits_of_the_model_it_was_made_from(tmp_path: Path, architecture: str) -> None:
    tie = architecture in {"llama", "qwen2"}
    folder = make_tiny_model(tmp_path, architecture, tie=tie, head_dim=32, sliding_window=None)
    write_gguf(tmp_path / "model.gguf", folder)
    assert_same_logits(transformers_model(folder), open_checkpoint("model.gguf", tmp_path))


def test_biased_queries_and_keys_of_a_gguf_file_are_reordered_too(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, attention_bias=True, mlp_bias=True)
    write_gguf(tmp_path / "model.gguf", folder)
    assert_same_logits(transformers_model(folder), open_checkpoint("model.gguf", tmp_path))


@pytest.mark.parametrize("kind", [TYPE.F16, TYPE.BF16, TYPE.Q8_0, TYPE.Q4_0, TYPE.Q4_1, TYPE.Q4_K, TYPE.Q6_K], ids=lambda kind: kind.name)
def test_each_gguf_type_reads_as_the_gguf_package_reads_it(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    folder = make_tiny_model(tmp_path, hidden_size=256, head_dim=64, layers=1)
    expected = write_gguf(tmp_path / "model.gguf", folder, kind)
    checkpoint = open_checkpoint("model.gguf", tmp_path)
    assert set(checkpoint.names()) == set(expected)
    for name, values in expected.items():
        tensor = checkpoint.tensor(name)
        assert tensor.dtype == (torch.bfloat16 if kind == TYPE.BF16 and values.ndim == 2 else torch.float32)
        np.testing.assert_array_equal(tensor.float().numpy(), values, err_msg=name)
    save_file({name: torch.from_numpy(values.copy()) for name, values in expected.items()}, folder / "model.safetensors")
    assert_same_logits(transformers_model(folder), checkpoint)


def test_llama3_rope_of_a_gguf_file_comes_from_its_table(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, head_dim=64, rope_theta=500000.0, rope_scaling={"rope_type": "llama3", **LLAMA3})
    write_gguf(tmp_path / "model.gguf", folder, rope_freqs=llama_cpp_table(64, 500000.0))
    checkpoint = open_checkpoint("model.gguf", tmp_path)
    assert checkpoint.config.rope_scaling == open_checkpoint(str(folder), tmp_path).config.rope_scaling
    assert_same_logits(transformers_model(folder), checkpoint)


def test_bfloat16_agrees_with_transformers_in_bfloat16(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, torch_dtype="bfloat16")
    checkpoint = open_checkpoint(str(folder), tmp_path)
    assert checkpoint.tensor("model.norm.weight").dtype == torch.bfloat16
    ids = some_ids()
    with torch.no_grad():
        expected = transformers_model(folder, torch.bfloat16)(ids[None]).logits[0]
        logits = forward(checkpoint.tensors(), checkpoint.config, ids, torch.bfloat16)
    assert logits.dtype == torch.bfloat16
    assert (logits.argmax(-1) == expected.argmax(-1)).float().mean() > 0.9
    assert (logits - expected).abs().mean() < 0.1


def test_hidden_states_are_those_before_and_after_each_layer(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, layers=3)
    checkpoint, ids = open_checkpoint(str(folder), tmp_path), some_ids(9)
    tensors = checkpoint.tensors()
    with torch.no_grad():
        states = hidden_states(tensors, checkpoint.config, ids)
        expected = transformers_model(folder)(ids[None], output_hidden_states=True)
    assert len(states) == 4
    for ours, theirs in zip(states[:3], expected.hidden_states[:3], strict=True):
        torch.testing.assert_close(ours, theirs[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(head(tensors, checkpoint.config, states[-1]), expected.logits[0], atol=1e-4, rtol=0)


def test_every_tensor_receives_a_gradient(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(make_tiny_model(tmp_path, "qwen3", tie=False)), tmp_path)
    tensors = {name: tensor.requires_grad_() for name, tensor in checkpoint.tensors().items()}
    forward(tensors, checkpoint.config, some_ids(8)).log_softmax(-1)[:, 3].sum().backward()
    assert all(tensor.grad is not None and tensor.grad.abs().sum() > 0 for tensor in tensors.values())


def test_later_tokens_do_not_change_earlier_logits(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(make_tiny_model(tmp_path)), tmp_path)
    tensors, ids = checkpoint.tensors(), some_ids(12)
    changed = torch.cat((ids[:8], some_ids(4, seed=1)))
    whole, other = (forward(tensors, checkpoint.config, sequence)[:8] for sequence in (ids, changed))
    torch.testing.assert_close(whole, other)


def test_a_float16_checkpoint_is_widened_exactly(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, torch_dtype="float16")
    tensor = open_checkpoint(str(folder), tmp_path).tensor("model.norm.weight")
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor.half(), load_file(folder / "model.safetensors")["model.norm.weight"])
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "float16"


def llama_cpp_table(head_dim: int, theta: float) -> np.ndarray:
    """The divisors as llama.cpp's converter writes them for Llama 3.1 (factor 8)."""
    table = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
        if wavelength < 8192 / 4.0:
            table.append(1.0)
        elif wavelength > 8192 / 1.0:
            table.append(8.0)
        else:
            table.append(1 / ((1 - smooth) / 8.0 + smooth))
    return np.array(table, dtype=np.float32)
