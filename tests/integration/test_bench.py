"""`builder bench` on a tiny random model, with the real build, kernels and tritonserver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from builder.bench.files import write_report
from builder.bench.placement import measure_placements
from builder.bench.prompts import select
from builder.bench.roofline import packed_bytes
from builder.bench.session import Options, run_bench
from builder.compile.torch_aot.engine import matrix_sizes
from builder.compile.torch_aot.folder import read_info
from builder.repository.versions import newest
from builder.spec.load import load_pipeline
from tests.integration.conftest import tiny_spec


def test_a_built_version_is_measured_from_end_to_end(built_repository: Path, tiny_weights: Path, tmp_path: Path) -> None:
    pipeline = tmp_path / "tiny.yaml"
    pipeline.write_text(yaml.safe_dump(tiny_spec("tiny", tiny_weights).model_dump(mode="json")))
    said: list[str] = []
    options = Options(tokens=40, draft_lengths=(2,), classes=("facts", "code"), quick=True)
    made = run_bench(load_pipeline(pipeline), newest(built_repository, "tiny"), options, said.append)
    document = json.loads((write_report(made, tmp_path / "report").parent / "report.json").read_text())
    assert document["identity"] == 1.0
    assert document["recommended_k"] == 2
    settings = {(row["class"], row["method"], row["k"]) for row in document["speculative"]}
    assert settings == {(kind, method, 2) for kind in ("facts", "code") for method in ("draft_model", "ngram", "hybrid")}
    assert document["limit_share"] > 0
    assert document["triton_share"] > 0
    assert set(document["triton"]["cpu_ms_per_token"]) >= {"client", "tritonserver", "tiny_tokenize", "tiny_decode", "tiny_detokenize"}
    assert document["triton"]["cpu_ms_per_token"]["tiny_decode"] > 0
    assert document["peak_memory_bytes"] > 10_000_000
    assert document["bytes_per_step"] > document["roofline"]["draft"]["weight_bytes"]
    assert any(line.startswith("Triton") for line in said)


def test_the_bytes_of_a_step_are_those_of_the_packed_matrices(built_repository: Path) -> None:
    folder = newest(built_repository, "tiny").decode_folder / "target"
    weights = sum(outputs * inputs for outputs, inputs in matrix_sizes(read_info(folder).model).values())
    assert packed_bytes(folder / "weights.safetensors") == pytest.approx(2 * weights, rel=0.01)  # bfloat16; outputs are padded to 32


def test_each_placement_of_the_draft_is_measured_or_said_why_not(built_repository: Path) -> None:
    made = measure_placements(newest(built_repository, "tiny"), select(("facts",), 1), 40, lambda _: None)
    document = made.to_json()
    cpu, cuda = document["placements"]
    assert (cpu["device"], cpu["available"], cpu["reason"]) == ("cpu", True, None)
    assert cpu["measured"]["identity"] == 1.0
    assert cpu["measured"]["step_times"]["draft_ms"] > 0
    assert (cuda["device"], cuda["available"], cuda["measured"]) == ("cuda", False, None)
    assert "sees no CUDA GPU" in cuda["reason"]
    assert document["configured"] == "same"
    assert document["recommended"] == ("cpu" if cpu["measured"]["speedup"] > 1 else None)
    (measured, missing) = made.table().rows
    assert measured[0] == "cpu" and missing[1:] == ("-",) * 6
