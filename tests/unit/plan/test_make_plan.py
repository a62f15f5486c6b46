"""make_plan opens what the pipeline names, and nothing it does not use."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.plan import make
from builder.plan.cost import StepTimes
from builder.plan.host import Host
from builder.plan.report import Measured
from builder.spec import LoadedPipeline, PipelineSpec

HOST = Host(memory=16 << 30, cores=2, instruction_sets=("generic",))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, make_context: Any) -> list[str]:
    """References opened, in order. `small.gguf` is a model of four layers with a tokenizer of its own."""
    refs: list[str] = []
    config = make_context().target

    def open_checkpoint(ref: str, base: Path) -> SimpleNamespace:
        assert base == Path("folder")
        refs.append(ref)
        return SimpleNamespace(config=dataclasses.replace(config, num_layers=4) if ref == "small.gguf" else config)

    monkeypatch.setattr(make, "open_checkpoint", open_checkpoint)
    monkeypatch.setattr(make, "open_tokenizer", lambda ref, base: SimpleNamespace(fingerprint=f"of {ref}"))
    return refs


def loaded(**sections: Any) -> LoadedPipeline:
    least = {"metadata": {"name": "demo", "owner": "team"}, "target": {"weights": "big.gguf"}}
    return LoadedPipeline(PipelineSpec.model_validate(least | sections), Path("folder/pipeline.yaml"))


def test_a_draft_of_the_target_s_weights_is_not_opened_again(opened: list[str]) -> None:
    assert make.make_plan(loaded(), host=HOST).ok
    assert opened == ["big.gguf"]


def test_an_unrelated_draft_is_refused_by_its_tokenizer(opened: list[str]) -> None:
    plan = make.make_plan(loaded(draft={"weights": "small.gguf"}), host=HOST)
    assert opened == ["big.gguf", "small.gguf"]
    assert [finding.id for finding in plan.findings if not finding.ok] == ["tokenizer-match"]


def test_a_draft_that_no_proposer_asks_for_is_not_opened(opened: list[str]) -> None:
    make.make_plan(loaded(draft={"weights": "small.gguf"}, speculation={"proposer": "ngram"}), host=HOST)
    assert opened == ["big.gguf"]


def test_measured_numbers_give_a_prediction(opened: list[str]) -> None:
    plan = make.make_plan(loaded(), host=HOST, measured=Measured(0.8, StepTimes(0.030, 0.0015, 0.035)))
    assert plan.predicted is not None and plan.predicted.prediction is not None
    assert plan.predicted.prediction.speed_up == pytest.approx(2.46, abs=0.005)
