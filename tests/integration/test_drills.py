"""The drills in their short form, on a real tritonserver with a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from builder.build import build_pipeline
from builder.drills.draft_drift import AS_FAST_AS_PLAIN, drill_draft_drift
from builder.drills.kill_switch import drill_kill_switch
from builder.drills.timeline import DrillResult
from builder.repository.event_log import EventLog
from builder.repository.flag_store import FlagStore
from builder.repository.versions import newest
from builder.serve.triton import Triton
from tests.integration.conftest import tiny_spec
from tests.unit.tiny_models import make_tiny_model


def test_the_kill_switch_stops_drafts_within_a_second_and_fails_no_request(built_repository: Path) -> None:
    result = drill_kill_switch(newest(built_repository, "tiny"), quick=True)
    assert result.passed, result.to_json()
    assert result.requests >= 40
    assert FlagStore(built_repository, "tiny").history() == []  # played on a copy


@pytest.fixture(scope="module")
def deep_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of 24 layers of which only the first says anything, and a draft of that one: drafts are kept and cost little, so that they
    pay on any machine. With the tiny model, whose draft costs what its target does, chance decides whether they do."""
    folder = tmp_path_factory.mktemp("deep")
    model = make_tiny_model(folder / "model", hidden_size=256, layers=24, head_dim=64, torch_dtype="bfloat16")
    tensors = load_file(model / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")) and ".layers.0." not in name:
            tensor *= 1e-3
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    pipeline = folder / "deep.yaml"
    spec = tiny_spec("deep", model, draft={"alignment": None, "layers": 1})
    pipeline.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    build_pipeline(pipeline, folder / "model_repository", verify=False)
    return folder / "model_repository"


@pytest.fixture(scope="module")
def drift(deep_repository: Path) -> DrillResult:
    return drill_draft_drift(newest(deep_repository, "deep"), quick=True)


def test_a_bad_draft_is_left_and_a_good_one_is_taken_up_again(drift: DrillResult) -> None:
    """How soon, how fast and why hang on what else the machine does: while another process has a core, costs change under the control."""
    found = {check.name: check.passed for check in drift.checks}
    assert found.keys() >= {"falls back in time", "says why", AS_FAST_AS_PLAIN, "acceptance is back"}, str(drift.to_json())
    assert found["speculates before"] and found["re-arms"] and found["no request fails"], str(drift.to_json())
    assert drift.measured["acceptance_before"] > 0.4


@pytest.mark.slow  # on a quiet machine
def test_on_a_quiet_machine_every_check_of_the_drill_holds(drift: DrillResult) -> None:
    assert drift.passed, str(drift.to_json())


def test_loads_and_flags_are_in_the_event_log(tiny_server: Triton) -> None:
    events = EventLog(tiny_server.repository, "tiny").read()
    assert {"load", "flags"} <= {event["event"] for event in events}
    assert not any("text_input" in event for event in events)
