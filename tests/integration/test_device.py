"""engine.device and draft.device, from a built version to its answers. A double: the GPU is the CPU in the runner for GPUs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from builder.bench import placement
from builder.bench.placement import measure_placements
from builder.bench.prompts import select
from builder.build import build_pipeline
from builder.decoding.params import SamplingParams
from builder.repository import engine
from builder.repository.engine import open_parts
from builder.repository.models.folder import read_spec
from builder.repository.versions import newest
from builder.runtime.request import Output, Request
from builder.runtime.runners.cuda.runner import CudaRunner, load_cuda_runner
from builder.spec.pipeline import PipelineSpec
from tests.integration.conftest import tiny_spec

PROMPTS = [tuple(range(5 + 7 * i, 30 + 11 * i)) for i in range(5)]


@pytest.fixture(scope="module")
def version_folder(tmp_path_factory: pytest.TempPathFactory, tiny_weights: Path) -> Path:
    """In float32, where no token hangs on the order of a sum."""
    folder = tmp_path_factory.mktemp("float32")
    spec = tiny_spec("tiny32", tiny_weights, target={"weights": str(tiny_weights), "dtype": "float32"})
    (folder / "tiny32.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    build_pipeline(folder / "tiny32.yaml", folder / "repository", verify=False)
    return newest(folder / "repository", "tiny32").decode_folder


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "load_cuda_runner", partial(load_cuda_runner, device=torch.device("cpu")))
    monkeypatch.setattr(placement, "gpu_memory", lambda: 1 << 34)


def placed(folder: Path, target: str, draft: str) -> PipelineSpec:
    spec = read_spec(folder)
    assert spec.draft is not None
    sections = {"engine": spec.engine.model_copy(update={"device": target}), "draft": spec.draft.model_copy(update={"device": draft})}
    return spec.model_copy(update=sections)


def decode(folder: Path, spec: PipelineSpec) -> tuple[dict[str, list[int]], int]:
    """Answers by request, and how many drafted tokens were kept."""
    loop = open_parts(folder, spec).engine()
    outputs: list[Output] = []
    for i, prompt in enumerate(PROMPTS):
        loop.submit(Request(str(i), prompt, SamplingParams(max_tokens=40, ignore_eos=True)), outputs.append)
    while loop.step():
        pass
    answers: dict[str, list[int]] = {}
    for output in outputs:
        answers.setdefault(output.request_id, []).extend(output.token_ids)
    return answers, sum(output.stats.num_accepted_draft_tokens for output in outputs if output.stats)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("target", "draft"), [("cuda", "same"), ("cuda", "cpu"), ("cpu", "cuda")])
def test_answers_are_the_same_wherever_target_and_draft_run(version_folder: Path, target: str, draft: str) -> None:
    spec = placed(version_folder, target, draft)
    parts = open_parts(version_folder, spec)
    devices = [isinstance(runner, CudaRunner) for runner in (parts.target, parts.draft)]
    assert devices == [target == "cuda", (target if draft == "same" else draft) == "cuda"]
    expected, kept = decode(version_folder, placed(version_folder, "cpu", "same"))
    answers, kept_here = decode(version_folder, spec)
    assert answers == expected and all(len(answer) == 40 for answer in answers.values())
    assert kept_here > kept / 2, "the draft's cache does not follow the target's"


@pytest.mark.usefixtures("gpu")
def test_each_device_of_the_draft_is_measured(version_folder: Path) -> None:
    version = newest(version_folder.parents[1], "tiny32")
    document = measure_placements(version, select(("facts",), 1), 40, lambda _: None).to_json()
    assert [(found["device"], found["available"]) for found in document["placements"]] == [("cpu", True), ("cuda", True)]
    for found in document["placements"]:
        assert found["measured"]["identity"] == 1.0 and found["measured"]["step_times"]["draft_ms"] > 0
