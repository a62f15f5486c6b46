"""Pipelines of trtllm-engine with doubles for both engines, and the torch engine to compare them with."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import yaml

from builder.decoding.params import SamplingParams
from builder.plan.context import PlanContext
from builder.plan.host import Host
from builder.plan.make import gather
from builder.repository import config_pbtxt
from builder.repository.calibrated import CalibratedExits
from builder.repository.handover_folder import write_folder
from builder.repository.tokenizer import load_tokenizer
from builder.runtime.engine import Engine
from builder.runtime.request import DecodeStats, Output, Request
from builder.serve.control import ModelControl
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from builder.spec import load_pipeline
from builder.weights import open_tokenizer
from tests.integration.conftest import HERE

K = 3
PROMPTS = ["The capital of France is", "def f(x):", "aaaa bbbb aaaa bbbb", "Grüße 👋", "x", "1 2 3 4 5 6 7 8", "a b a b a b", "\n\n"]
SPECULATION = {"proposer": "draft_model", "max_draft_tokens": K}


def pair_context(
    folder: Path, models: tuple[Path, Path], name: str, *, adaptive: bool, sections: Mapping[str, Any] | None = None
) -> PlanContext:
    spec = {
        "metadata": {"name": name, "owner": "tests"},
        "target": {"weights": str(models[0])},
        "draft": {"weights": str(models[1])},
        "speculation": SPECULATION | {"control": {"adaptive": adaptive}},
        "engine": {
            "backend": "trtllm-engine",
            "gpu": {"name": "L4"},
            "max_batch_size": 8,
            "max_seq_len": 256,
            "kv_cache": {"memory": "16MiB", "block_size": 32},
        },
        "serving": {"stream_interval": "0ms"},
        "chargeback": {"tenants": ["search", "support"]},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec | dict(sections or {})))
    return gather(load_pipeline(folder / f"{name}.yaml"), Host(memory=16 << 30, cores=2))


def hand_over(
    folder: Path,
    models: tuple[Path, Path],
    torch_version: Path,
    name: str,
    *,
    adaptive: bool = False,
    sections: Mapping[str, Any] | None = None,
    exits: CalibratedExits | None = None,
    **parameters: Mapping[str, int],
) -> Path:
    """The repository of a hand-over, with doubles in place of the two engines."""
    context = pair_context(folder, models, name, adaptive=adaptive, sections=sections)
    write_folder(folder / name, context, {}, open_tokenizer(str(models[0]), folder), {}, exits)
    repository = folder / name / "model_repository"
    for role, drafts in (("target", K), ("draft", 0)):
        model = repository / f"{name}_{role}"
        config = config_pbtxt.read(model)
        config.backend = "python"
        given = {"runner": torch_version / role, "kernels": torch_version / "kernels", "max_draft_len": drafts, "max_seq_len": 256}
        for key, value in (given | parameters.get(role, {})).items():
            config.parameters[key].string_value = str(value)
        config_pbtxt.write(model, config)
        shutil.copy(HERE / "contract_model.py", model / "1" / "model.py")
        shutil.copy(HERE.parent / "unit" / "trtllm" / "engine_double.py", model / "1")
    return repository


def serving(repository: Path, name: str) -> Triton:
    return Triton(repository, name, free_ports())


def load_engines(server: Triton) -> None:
    control = ModelControl("127.0.0.1", server.ports["http"])
    for role in ("target", "draft"):
        control.load(f"{server.pipeline}_{role}")


def reference(engine: Engine, folder: Path, prompt: str, **options: Any) -> tuple[str, DecodeStats]:
    """Text and counts of the torch engine."""
    tokenizer, outputs, over = load_tokenizer(folder / "tokenizer"), list[Output](), threading.Event()
    speculation = options.pop("speculation", True)
    request = Request(prompt, tuple(tokenizer.encode(prompt, add_special_tokens=True)), SamplingParams(**options), speculation)

    def take(output: Output) -> None:
        outputs.append(output)
        if output.finish_reason is not None:
            over.set()

    engine.submit(request, take)
    assert over.wait(60)
    stats = outputs[-1].stats
    assert stats is not None
    return tokenizer.decode([token for output in outputs for token in output.token_ids]), stats


def counts(stats: Mapping[str, Any] | DecodeStats) -> dict[str, Any]:
    names = ("optimisation", "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "target_passes", "target_passes_avoided")
    found = stats if isinstance(stats, Mapping) else vars(stats)
    return {name: found[name] for name in names} | {"histogram": list(found["acceptance_histogram"])}


def told(answer: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(answer["decode_stats"]))


def direct(server: Triton, tensors: Mapping[str, Any]) -> Any:
    """The first response of the target."""
    answers: list[tuple[Any, Any]] = []
    came = threading.Event()

    def take(result: Any, error: Any) -> None:
        answers.append((result, error))
        came.set()

    with grpc.InferenceServerClient(f"127.0.0.1:{server.ports['grpc']}") as triton:
        inputs = []
        for name, value in tensors.items():
            array = np.array(value)
            array = array.astype(np.int32 if array.dtype.kind == "i" else np.float32)
            inputs.append(grpc.InferInput(name, list(array.shape), "INT32" if array.dtype == np.int32 else "FP32"))
            inputs[-1].set_data_from_numpy(array)
        triton.start_stream(take)
        outputs = [grpc.InferRequestedOutput(name) for name in ("output_ids", "sequence_length")]
        triton.async_stream_infer(f"{server.pipeline}_target", inputs, outputs=outputs)
        assert came.wait(20)
        triton.stop_stream()
    result, error = answers[0]
    if error is not None:
        raise error
    return result
