"""Real tritonserver processes: one that serves a repeating engine, one that serves a tiny model built by `builder build`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.build import build_pipeline
from builder.repository.publish import Release, publish
from builder.repository.tokenizer import tokenizer_texts
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from builder.spec.pipeline import PipelineSpec
from builder.weights import open_tokenizer
from tests.unit.tiny_models import make_tiny_model

HERE = Path(__file__).parent
ECHO_MODEL = """\
import echo_engine
from builder.repository.models import decode


class TritonPythonModel(decode.TritonPythonModel):
    load = staticmethod(echo_engine.load)
"""


def tiny_spec(name: str, weights: Path, **sections: Any) -> PipelineSpec:
    spec = {
        "metadata": {"name": name, "owner": "tests"},
        "target": {"weights": str(weights)},
        "draft": {"alignment": None},  # random weights write nothing worth learning
        "engine": {"max_seq_len": 256, "threads": 1, "max_batch_size": 8, "kv_cache": {"memory": "16MiB"}},
        "speculation": {"control": {"adaptive": False}},  # drafts of a model this small never pay
        "serving": {
            "stream_interval": "0ms",  # a chunk a round: what a chunk holds is then known
            "tenants": {"trial": {"max_concurrent": 2, "requests_per_minute": 5}},
        },
        "chargeback": {"tenants": ["search", "support", "trial"]},
    }
    return PipelineSpec.model_validate(spec | sections)


def publish_echo(repository: Path, weights: Path, name: str = "echo") -> None:
    """A version whose decode model is the repeating engine, without engine folders."""
    spec = tiny_spec(name, weights).model_dump(mode="json")
    release = Release(name, spec, {"weights": "echo"}, tokenizer_texts(open_tokenizer(str(weights), weights.parent)), {})

    def take_the_engine(staged: Path) -> dict[str, Any]:
        shutil.copy(HERE / "echo_engine.py", staged)
        (staged / "model.py").write_text(ECHO_MODEL)
        return {}

    publish(repository, release, take_the_engine)


@pytest.fixture(scope="session")
def tiny_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("weights") / "tiny")


@pytest.fixture(scope="session")
def echo_repository(tmp_path_factory: pytest.TempPathFactory, tiny_weights: Path) -> Path:
    repository = tmp_path_factory.mktemp("echo_repository")
    publish_echo(repository, tiny_weights)
    return repository


@pytest.fixture(scope="session")
def echo_server(echo_repository: Path) -> Iterator[Triton]:
    with Triton(echo_repository, "echo", free_ports()) as server:
        yield server


@pytest.fixture(scope="session")
def built_repository(tmp_path_factory: pytest.TempPathFactory, tiny_weights: Path) -> Path:
    """A repository made by the real build: a tiny random target, its INT4 draft, compiled kernels."""
    folder = tmp_path_factory.mktemp("built")
    pipeline = folder / "tiny.yaml"
    pipeline.write_text(yaml.safe_dump(tiny_spec("tiny", tiny_weights).model_dump(mode="json")))
    build_pipeline(pipeline, folder / "model_repository", verify=False)  # tests/integration/test_verify.py has the gate
    return folder / "model_repository"


@pytest.fixture(scope="session")
def tiny_server(built_repository: Path) -> Iterator[Triton]:
    with Triton(built_repository, "tiny", free_ports()) as server:
        yield server
