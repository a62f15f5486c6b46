"""Early exit by the real tritonserver: what an answer says of it, who may turn it off, and what the metrics count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.build import build_pipeline
from builder.calibrate import calibrate_pipeline
from builder.exits.calibrate import Limits
from builder.files import write_atomically
from builder.repository.exits import CALIBRATION_FILE
from builder.repository.flag_store import FlagStore
from builder.repository.live import serving_version
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from tests.integration.talk import eventually, generate, refused, total
from tests.unit.exits.conftest import write_pipeline
from tests.unit.tiny_models import make_tiny_model

ASKED = {"text_input": "The capital of France is", "max_tokens": 40, "ignore_eos": True}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("early_exit")
    make_tiny_model(folder / "tiny", layers=4)
    # any random model's exits keep to this bound: what is tested here is the way to the client
    pipeline = write_pipeline(folder, quality={"max_disagreement": 0.65, "confidence": 0.6})
    calibrate_pipeline(pipeline, limits=Limits(portion=60, steps=40))
    build_pipeline(pipeline, folder / "model_repository", verify=False)  # the gate refuses: exits this loose drift
    return folder / "model_repository"


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Triton]:
    with Triton(repository, "tiny", free_ports()) as running:
        yield running


def stats(server: Triton, **body: Any) -> dict[str, Any]:
    return dict(json.loads(generate(server, **ASKED | body)["decode_stats"]))


def test_an_answer_says_which_layers_its_tokens_left_at(server: Triton) -> None:
    found = stats(server)
    assert (found["optimisation"], found["early_exit"]) == ("early_exit", "on")
    assert sum(found["exit_layers"].values()) == 40 and set(found["exit_layers"]) <= {"2", "3", "4"}
    assert found["average_layers"] == pytest.approx(sum(int(layer) * n for layer, n in found["exit_layers"].items()) / 40, abs=1e-3)
    eventually(lambda: total(server, "tandem_early_exit_tokens") == 40)
    assert total(server, "tandem_early_exit_layers") == pytest.approx(40 * found["average_layers"])
    assert total(server, "tandem_tokens", optimisation="early_exit", token_type="output") == 40


def test_a_request_may_decline_and_one_at_another_temperature_runs_in_full(server: Triton) -> None:
    declined = stats(server, early_exit="off")
    assert (declined["optimisation"], declined["early_exit"], declined["exit_layers"]) == ("plain", "declined", {"4": 40})
    sampled = stats(server, temperature=0.8, seed=1)
    assert (sampled["optimisation"], sampled["early_exit"]) == ("plain", "temperature")
    assert "one of on, off" in refused(server, {**ASKED, "early_exit": "auto"})


def test_the_flag_turns_it_off_without_a_restart(server: Triton, repository: Path) -> None:
    store = FlagStore(repository, "tiny")
    full = generate(server, **ASKED, early_exit="off")["text_output"]
    store.set({"early_exit": False}, "a test")
    eventually(lambda: stats(server)["early_exit"] == "operator")
    assert generate(server, **ASKED)["text_output"] == full
    store.set({"early_exit": None}, "mended")
    eventually(lambda: stats(server)["optimisation"] == "early_exit")


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("exit_draft")
    make_tiny_model(folder / "tiny", layers=4)
    early_exit = {"mode": "draft", "layers": [2, 3], "max_pending": 2, "calibration": {"answers": 60}}
    speculation = {"proposer": "early_exit", "control": {"adaptive": False}}
    pipeline = write_pipeline(folder, early_exit=early_exit, speculation=speculation)
    calibrate_pipeline(pipeline, limits=Limits(portion=60, steps=40))
    build_pipeline(pipeline, folder / "model_repository", verify=False)
    file = serving_version(folder / "model_repository", "tiny").decode_folder / "exits" / CALIBRATION_FILE
    found = json.loads(file.read_text())
    write_atomically(file, json.dumps({**found, "draft": {**found["draft"], "threshold": 0.001}}))  # random weights are never sure
    with Triton(folder / "model_repository", "tiny", free_ports()) as running:
        yield running


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 1}])
def test_an_exit_drafts_for_answers_and_changes_none(drafting: Triton, sampling: dict[str, Any]) -> None:
    drafted = generate(drafting, **ASKED, **sampling)
    found = json.loads(drafted["decode_stats"])
    assert found["optimisation"] == "speculative" and found["num_draft_tokens"] > 0
    if not sampling:
        plain = generate(drafting, **ASKED, speculation="off")
        assert json.loads(plain["decode_stats"])["optimisation"] == "plain"
        assert plain["text_output"] == drafted["text_output"]
