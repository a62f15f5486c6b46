"""A tiny random model of four layers, its pipeline, and its target engine as a build leaves it in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from builder.align.staging import Parts
from builder.build import compile_target
from builder.compile.cache import default_cache
from builder.compile.torch_aot.library import build_library
from builder.progress import NoProgress
from builder.spec.load import load_pipeline
from builder.spec.pipeline import PipelineSpec
from tests.unit.tiny_models import make_tiny_model

LAYERS = (2, 3)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def write_pipeline(folder: Path, **sections: Any) -> Path:
    """A pipeline with early exit over tiny weights beside it."""
    document: dict[str, Any] = {
        "apiVersion": "tandem/v1",
        "kind": "Pipeline",
        "metadata": {"name": "tiny", "owner": "tests@example.com"},
        "target": {"weights": "tiny"},
        "draft": None,
        "speculation": {"proposer": "none"},
        "early_exit": {"mode": "answer", "layers": list(LAYERS), "max_pending": 2, "protected_tokens": 3, "calibration": {"answers": 60}},
        "engine": {"max_seq_len": 128, "threads": 1, "max_batch_size": 8, "kv_cache": {"memory": "16MiB"}},
        "quality": {"max_disagreement": 0.4, "confidence": 0.6},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(document | sections), encoding="utf-8")
    return path


def cache_with_kernels(folder: Path) -> Path:
    """An empty engine cache but for the kernels: one process can load one library of them."""
    kernels = build_library(default_cache())
    (folder / kernels.name).symlink_to(kernels)
    return folder


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exits")
    make_tiny_model(folder / "tiny", layers=4)
    return write_pipeline(folder)


@pytest.fixture(scope="session")
def compiled(pipeline: Path) -> tuple[Parts, Mapping[str, str]]:
    return compile_target(load_pipeline(pipeline), default_cache(), NoProgress())


@pytest.fixture(scope="session")
def parts(compiled: tuple[Parts, Mapping[str, str]]) -> Parts:
    return compiled[0]


@pytest.fixture(scope="session")
def spec(pipeline: Path) -> PipelineSpec:
    return load_pipeline(pipeline).spec
