"""Real checkpoints of a tiny random llama, made by modelopt in its own environment; skipped where `make trtllm` was not run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builder.build import NoProgress
from builder.compile.trtllm.checkpoints import modelopt_python
from builder.repository.handover import hand_over
from builder.repository.versions import newest
from builder.spec import load_pipeline
from builder.weights import open_checkpoint

PIPELINES = Path(__file__).parents[2] / "pipelines"


def has_modelopt() -> bool:
    found = subprocess.run(
        [str(modelopt_python()), "-c", "import importlib.util as u; print(u.find_spec('modelopt'))"], capture_output=True
    )
    return found.returncode == 0 and b"None" not in found.stdout


@pytest.fixture(scope="module")
def handed_over(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not has_modelopt():
        pytest.skip("modelopt is not installed: run `make trtllm`")
    folder = tmp_path_factory.mktemp("trtllm")
    hand_over(load_pipeline(PIPELINES / "tiny-trtllm.yaml"), folder / "out", folder / "cache", NoProgress())
    return folder / "out" / "checkpoints"


def read(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    return json.loads((folder / "config.json").read_text()), load_file(str(folder / "rank0.safetensors"))


def test_the_target_s_tensors_are_those_of_the_model(handed_over: Path) -> None:
    config, tensors = read(handed_over / "target")
    original = open_checkpoint("tiny-llama", PIPELINES)
    layer, ours = "transformer.layers.1", "model.layers.1"
    attention = torch.cat([original.tensor(f"{ours}.self_attn.{name}_proj.weight") for name in "qkv"])
    assert torch.equal(tensors[f"{layer}.attention.qkv.weight"], attention)
    assert torch.equal(tensors[f"{layer}.mlp.proj.weight"], original.tensor(f"{ours}.mlp.down_proj.weight"))
    assert torch.equal(tensors["transformer.vocab_embedding.weight"], original.tensor("model.embed_tokens.weight"))
    assert (config["dtype"], config["num_hidden_layers"], config["logits_dtype"]) == ("bfloat16", 2, "float32")


def test_the_draft_is_the_first_layer_in_int4_with_scales(handed_over: Path) -> None:
    config, tensors = read(handed_over / "draft")
    assert config["num_hidden_layers"] == 1
    assert {name for name in tensors if ".layers." in name and ".layers.0." not in name} == set()
    quantization = config["quantization"]
    assert (quantization["quant_algo"], quantization["group_size"], quantization["pre_quant_scale"]) == ("W4A16_AWQ", 128, True)
    name = "transformer.layers.0.mlp.proj"
    assert tensors[f"{name}.weight"].dtype == torch.int8
    assert tensors[f"{name}.weight"].numel() == 128 * 256 // 2  # two weights a byte
    assert tensors[f"{name}.weights_scaling_factor"].shape == (128, 2)  # two groups of 128 inputs
    assert tensors[f"{name}.prequant_scaling_factor"].shape == (256,)
    assert (tensors[f"{name}.weights_scaling_factor"] > 0).all()
    original = open_checkpoint("tiny-llama", PIPELINES)
    assert torch.equal(tensors["transformer.ln_f.weight"], original.tensor("model.norm.weight"))


def test_both_say_one_type_of_logits_and_one_vocabulary(handed_over: Path) -> None:
    configs = [read(handed_over / role)[0] for role in ("target", "draft")]
    assert len({(config["logits_dtype"], config["vocab_size"]) for config in configs}) == 1


def test_the_llm_class_gets_a_whole_version_with_an_int4_draft(tmp_path: Path) -> None:
    if not has_modelopt():
        pytest.skip("modelopt is not installed: run `make trtllm`")
    text = (PIPELINES / "tiny-trtllm.yaml").read_text().replace("trtllm-engine", "trtllm-llmapi")
    path = tmp_path / "pipeline.yaml"
    path.write_text(text.replace("weights: tiny-llama", f"weights: {PIPELINES / 'tiny-llama'}"))
    hand_over(load_pipeline(path), tmp_path / "out", tmp_path / "cache", NoProgress())
    version = newest(tmp_path / "out" / "model_repository", "tiny-trtllm").decode_folder
    assert open_checkpoint(str(version / "target"), tmp_path).config.num_layers == 2
    quantization = json.loads((version / "draft" / "hf_quant_config.json").read_text())["quantization"]
    assert (quantization["quant_algo"], quantization["group_size"]) == ("W4A16_AWQ", 128)
    assert json.loads((version / "draft" / "config.json").read_text())["num_hidden_layers"] == 1
