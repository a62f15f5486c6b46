"""A kernel library compiled once a source change, and engines of tiny models made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from builder.compile.cache import default_cache
from builder.compile.torch_aot.engine import Packer
from builder.compile.torch_aot.folder import EngineInfo, write_folder
from builder.compile.torch_aot.library import LIBRARY, build_library
from builder.runtime.runners.torch_aot import TorchAotRunner, load_kernels, load_runner
from builder.weights import Checkpoint, open_checkpoint
from tests.unit.tiny_models import make_tiny_model

PackTiny = Callable[..., tuple[Checkpoint, Path]]
LoadTiny = Callable[..., tuple[Checkpoint, TorchAotRunner]]
CONTEXT = 128
BLOCK = 16


@pytest.fixture(scope="session")
def library() -> Path:
    return build_library(default_cache()) / LIBRARY


@pytest.fixture(scope="session")
def instruction_sets(library: Path) -> list[str]:
    load_kernels(library)
    return list(torch.ops.tandem.instruction_sets())


@pytest.fixture
def pack_tiny(tmp_path: Path) -> PackTiny:
    """pack_tiny(weights, model settings, packer options) -> the checkpoint and the folder of its engine."""

    def pack(weights: str = "float32", settings: dict[str, Any] | None = None, **options: Any) -> tuple[Checkpoint, Path]:
        folder = make_tiny_model(tmp_path / "model", **(settings or {}))
        checkpoint = open_checkpoint(str(folder), tmp_path)
        packer = Packer(checkpoint, weights, **options)  # type: ignore[arg-type]
        tensors = packer.tensors()
        engine = tmp_path / f"{weights}-{len(list(tmp_path.iterdir()))}"
        write_folder(engine, EngineInfo("target", packer.config, weights, checkpoint.source, "test", errors=packer.errors), tensors)
        return checkpoint, engine

    return pack


@pytest.fixture
def load_tiny(pack_tiny: PackTiny, library: Path) -> LoadTiny:
    """load_tiny(weights, instruction_set, model settings, packer options) -> the checkpoint and a runner with a cache."""

    def load(
        weights: str = "float32", instruction_set: str = "auto", settings: dict[str, Any] | None = None, **options: Any
    ) -> tuple[Checkpoint, TorchAotRunner]:
        checkpoint, engine = pack_tiny(weights, settings, **options)
        runner = load_runner(engine, library, max_seq_len=CONTEXT, threads=2, instruction_set=instruction_set)
        runner.allocate_cache(CONTEXT // BLOCK, BLOCK)
        return checkpoint, runner

    return load
