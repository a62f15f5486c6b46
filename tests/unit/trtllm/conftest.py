"""A tiny random llama whose widths 128 divides, and a pipeline over it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.plan.context import PlanContext
from builder.plan.host import Host
from builder.plan.make import gather
from builder.repository import handover
from builder.spec import LoadedPipeline, load_pipeline
from tests.unit.tiny_models import make_tiny_model
from tests.unit.trtllm.pair_double import Pair

HOST = Host(memory=16 << 30, cores=2)
WritePipeline = Callable[..., LoadedPipeline]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    return make_tiny_model(
        folder, hidden_size=128, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate_size=256, torch_dtype="bfloat16"
    )


@pytest.fixture
def write_pipeline(tiny_llama: Path, tmp_path: Path) -> WritePipeline:
    """write_pipeline(engine={...}, trt={...}, ...): a pipeline file over the tiny llama with a draft of its first layer."""

    def write(*, engine: dict[str, Any] | None = None, trt: dict[str, Any] | None = None, **sections: Any) -> LoadedPipeline:
        limits = {"max_batch_size": 4, "max_seq_len": 256, "kv_cache": {"memory": "64MiB", "block_size": 32}}
        data: dict[str, Any] = {
            "metadata": {"name": "tiny", "owner": "team"},
            "target": {"weights": str(tiny_llama)},
            "draft": {"layers": 1, "quantization": {"group_size": 128}},
            "speculation": {"proposer": "draft_model", "max_draft_tokens": 3},
        }
        data |= sections
        merged = {"backend": "trtllm-engine", "gpu": {"name": "L4", "count": 2}} | limits | (engine or {})
        data["engine"] = merged | ({"tensorrt_llm": trt} if trt else {})
        path = tmp_path / "pipeline.yaml"
        path.write_text(json.dumps(data))  # JSON is YAML, without aliases
        return load_pipeline(path)

    return write


@pytest.fixture
def make_plan_context(write_pipeline: WritePipeline) -> Callable[..., PlanContext]:
    return lambda **changes: gather(write_pipeline(**changes), HOST)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """In place of modelopt: a folder with a config.json. Holds the recipes asked for."""
    recipes: list[Any] = []

    def export(cache: Path, role: str, recipe: Any, *rest: Any) -> Path:
        recipes.append(recipe)
        folder = cache / f"{role}-export"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text('{"vocab_size": 320}')
        return folder

    monkeypatch.setattr(handover, "export", export)
    return recipes


@pytest.fixture
def make_pair() -> Iterator[Any]:
    made: list[Pair] = []

    def make(**options: Any) -> Pair:
        made.append(Pair(**options))
        return made[-1]

    yield make
    for pair in made:
        pair.engine.stop()
