"""Engines of a tiny random model, as a build leaves them in its cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builder.align.staging import Parts
from builder.compile.cache import default_cache
from builder.compile.torch_aot.engine import Packer
from builder.compile.torch_aot.folder import EngineInfo, write_folder
from builder.compile.torch_aot.library import build_library
from builder.repository.tokenizer import tokenizer_texts
from builder.spec.pipeline import PipelineSpec
from builder.weights import open_checkpoint, open_tokenizer
from tests.unit.tiny_models import make_tiny_model


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("align") / "tiny")


def pack(weights: Path, folder: Path, kind: str, **options: object) -> Path:
    checkpoint = open_checkpoint(str(weights), weights.parent)
    packer = Packer(checkpoint, kind, **options)  # type: ignore[arg-type]
    tensors = packer.tensors()
    write_folder(folder, EngineInfo("test", packer.config, kind, checkpoint.source, "test", options.get("group_size")), tensors)  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory, tiny_weights: Path) -> Parts:
    cache = tmp_path_factory.mktemp("engines")
    return Parts(
        target=pack(tiny_weights, cache / "target", "bfloat16"),
        draft=pack(tiny_weights, cache / "draft", "int4", group_size=32, embedding=False),
        kernels=build_library(default_cache()),
        tokenizer=tokenizer_texts(open_tokenizer(str(tiny_weights), tiny_weights.parent)),
    )


@pytest.fixture(scope="session")
def spec(tiny_weights: Path) -> PipelineSpec:
    return PipelineSpec.model_validate(
        {
            "metadata": {"name": "tiny", "owner": "tests"},
            "target": {"weights": str(tiny_weights)},
            "engine": {"max_seq_len": 256, "threads": 1, "max_batch_size": 8, "kv_cache": {"memory": "16MiB"}},
        }
    )
