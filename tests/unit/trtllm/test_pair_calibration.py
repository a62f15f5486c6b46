"""Calibration of two served engines, over doubles whose agreement is known, and the build that goes by it."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from builder.build import NoProgress
from builder.cli.main import app
from builder.decoding.exits.rounds import leave_in_rounds
from builder.decoding.exits.rule import FULL, Answers, ExitLimits
from builder.errors import BuildError, CheckError, EngineError, SpecError
from builder.exits import served_calibration
from builder.exits.passages import ANSWER_TOKENS
from builder.exits.recipe import CalibrationOptions
from builder.exits.result import CalibrationResult
from builder.exits.served_calibration import calibrate_engines
from builder.plan.calibration import CalibrationRecord, engines_made_for, read_calibration, record_file, write_calibration
from builder.plan.make import make_plan
from builder.repository.exits import open_pair_exit
from builder.repository.handover import hand_over
from builder.repository.versions import newest
from builder.spec import LoadedPipeline, load_pipeline
from tests.unit.trtllm.served_double import Draft, Target

OPTIONS = CalibrationOptions(answers=150)
EXIT = {"mode": "answer", "protected_tokens": 8}
QUALITY = {"max_disagreement": 0.05, "confidence": 0.9}


def connecting(draft: Draft, asked: list[tuple[str, str]] | None = None) -> Callable[..., Any]:
    @asynccontextmanager
    async def connect(address: str, pipeline: str) -> AsyncIterator[tuple[Target, Draft]]:
        if asked is not None:
            asked.append((address, pipeline))
        yield draft.target, draft

    return connect


@pytest.fixture
def pipeline(write_pipeline: Any) -> LoadedPipeline:
    return write_pipeline(early_exit=EXIT, quality=QUALITY)


def calibrated(pipeline: LoadedPipeline, cache: Path, draft: Draft, **options: Any) -> CalibrationResult:
    return calibrate_engines(pipeline.path, options.pop("options", OPTIONS), cache=cache, connect=connecting(draft), **options)


def test_a_threshold_is_found_and_held_out_answers_disagree_within_the_bound(pipeline: LoadedPipeline, tmp_path: Path) -> None:
    draft = Draft(Target())
    found = calibrated(pipeline, tmp_path / "cache", draft).found
    (layer,), held_out = found["layers"], found["held_out"]
    assert layer["layer"] == 1 and found["depth"] == 2
    assert found["tested"] > 5 * held_out["answers"], "nothing is trained, so what heads would learn from tests too"
    assert 0 < held_out["disagreement"] <= 0.05
    assert layer["agreement_after"] == pytest.approx(0.6 * 0.995 + 0.4 * 0.4, abs=0.04)
    assert layer["threshold"] < 0.91 and layer["exit_share"] > 0.25, "all that are sure leave, but for the first tokens of each round"
    assert held_out["predicted_speedup"] > found["speculation"]["predicted_speedup"] > 0.5
    record = read_calibration(pipeline.path)
    assert record is not None and record.bounded and record.guarantee == found["guarantee"]
    assert "these two engines" in record.guarantee and "at most 5.00%" in record.guarantee
    assert (tmp_path / "cache" / record.folder / "calibration.json").is_file()


def test_the_record_names_everything_the_engines_are_made_of(pipeline: LoadedPipeline, tmp_path: Path) -> None:
    calibrated(pipeline, tmp_path / "cache", Draft(Target()))
    record = read_calibration(pipeline.path)
    assert record is not None and set(record.made_for) == {
        "target.weights",
        "target.dtype",
        "tokenizer",
        "draft.layers",
        "draft.quantization",
        "engine.backend",
        "engine.tensorrt_llm.version",
        "engine.tensorrt_llm.logits_dtype",
        "early_exit.max_pending",
        "early_exit.protected_tokens",
        "quality.max_disagreement",
        "quality.confidence",
    }


def test_no_threshold_is_found_where_none_can_be_shown_safe_and_the_plan_says_so(write_pipeline: Any, tmp_path: Path) -> None:
    pipeline = write_pipeline(early_exit=EXIT, quality=QUALITY | {"max_disagreement": 0.001})
    found = calibrated(pipeline, tmp_path / "cache", Draft(Target(), right=0.5)).found
    assert found["layers"][0]["threshold"] is None and found["held_out"]["disagreement"] == 0
    record = read_calibration(pipeline.path)
    assert record is not None and not record.bounded and "early exit stays off" in record.guarantee
    with pytest.raises(CheckError, match="exit-calibrated: No thresholds were found"):
        make_plan(pipeline).require()


def test_many_calls_are_in_flight_at_once_and_never_more_than_the_batch_has_places(pipeline: LoadedPipeline, tmp_path: Path) -> None:
    draft = Draft(Target())
    calibrated(pipeline, tmp_path / "cache", draft)
    assert draft.target.most == draft.most == pipeline.spec.engine.max_batch_size


def test_an_answer_goes_up_to_its_end_and_the_rest_is_not_waited_for(pipeline: LoadedPipeline, tmp_path: Path) -> None:
    target = Target(ends_in=30)
    draft = Draft(target)
    calibrated(pipeline, tmp_path / "cache", draft)
    assert target.left_early > 50
    written = [call for call in target.calls if call.sampling.greedy]
    assert draft.calls < 0.7 * ANSWER_TOKENS * len(written)
    assert all(call.sampling.min_p == 0 for call in target.calls), "the backend has none"


def test_no_call_is_longer_than_the_engines_context(write_pipeline: Any, tmp_path: Path) -> None:
    small = {"max_seq_len": 64, "kv_cache": {"memory": "64MiB", "block_size": 32}}
    target = Target(room=64)
    calibrated(write_pipeline(early_exit=EXIT, quality=QUALITY, engine=small), tmp_path / "cache", Draft(target))
    assert max(len(call.token_ids) + call.max_tokens for call in target.calls) == 64


def test_the_time_allowed_ends_it_and_too_few_answers_are_told(pipeline: LoadedPipeline, tmp_path: Path) -> None:
    ticks = iter(range(0, 10**9, 2000))
    target = Target()
    calibrated(pipeline, tmp_path / "cache", Draft(target), options=replace(OPTIONS, answers=400), clock=lambda: next(ticks))
    assert sum(not call.sampling.greedy for call in target.calls) == 100, "one portion"
    with pytest.raises(BuildError, match=r"came to 0 answers.*more answers"):
        calibrated(pipeline, tmp_path / "cache", Draft(Target(ends_in=1)))


def test_a_draft_without_logits_is_missed_by_the_setting_that_gives_them(pipeline: LoadedPipeline, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no logits.*early_exit.mode answer"):
        calibrated(pipeline, tmp_path / "cache", Draft(Target(), mute=True))
    assert not record_file(pipeline.path).exists()


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"early_exit": {"mode": "none"}}, "early_exit.mode is none"),
        ({"draft": {"layers": "all"}, "early_exit": EXIT}, "exit-is-the-draft"),
    ],
)
def test_a_pipeline_whose_draft_is_no_exit_is_refused_before_anything_is_asked(
    write_pipeline: Any, tmp_path: Path, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckError, match=words):
        calibrated(write_pipeline(**sections), tmp_path / "cache", Draft(Target()))


def test_a_build_before_the_calibration_serves_without_exits_and_one_after_it_with_them(
    pipeline: LoadedPipeline, exported: list[Any], tmp_path: Path
) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    hand_over(pipeline, out, cache, NoProgress())
    before = newest(out / "model_repository", "tiny")
    assert "builder calibrate" in json.loads((out / "handover.json").read_text())["next_step"]
    assert not (before.decode_folder / "exits").exists()
    found = calibrated(pipeline, cache, Draft(Target())).found
    hand_over(pipeline, out, cache, NoProgress())
    version = newest(out / "model_repository", "tiny")
    version.manifest.check(version.folders)
    assert version.manifest.fingerprints["exits"] and version.manifest.results["early_exit"]["guarantee"] == found["guarantee"]
    assert "builder calibrate" not in json.loads((out / "handover.json").read_text())["next_step"]
    opened = open_pair_exit(version.decode_folder / "exits", frozenset({257}))
    assert (opened.layer, opened.depth, opened.threshold) == (1, 2, found["layers"][0]["threshold"])
    assert (opened.limits, opened.ends) == (ExitLimits(4, 8), {257})


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"draft": {"layers": 1, "quantization": {"group_size": 64}}}, "draft.quantization"),
        ({"trt": {"version": "1.2.0"}}, "engine.tensorrt_llm.version"),
        ({"early_exit": EXIT | {"max_pending": 2}}, "early_exit.max_pending"),
        ({"quality": QUALITY | {"max_disagreement": 0.01}}, "quality.max_disagreement"),
    ],
)
def test_a_build_refuses_a_stale_record_and_says_how_to_go_on(
    write_pipeline: Any, exported: list[Any], tmp_path: Path, change: dict[str, Any], name: str
) -> None:
    pipeline = write_pipeline(early_exit=EXIT, quality=QUALITY)
    calibrated(pipeline, tmp_path / "cache", Draft(Target()))
    changed = write_pipeline(**{"early_exit": EXIT, "quality": QUALITY} | change)
    with pytest.raises(CheckError, match=rf"stale: {name} changed since.*builder calibrate .*--grpc.*remove the record"):
        hand_over(changed, tmp_path / "out", tmp_path / "cache", NoProgress())
    assert not exported
    record_file(pipeline.path).unlink()
    hand_over(changed, tmp_path / "out", tmp_path / "cache", NoProgress())


def test_where_the_weights_are_not_the_rest_of_the_record_is_compared(tmp_path: Path) -> None:
    path = Path(shutil.copy("pipelines/llama-exit-a100.yaml", tmp_path))
    fits = engines_made_for(load_pipeline(path).spec) | {"target.weights": "elsewhere", "tokenizer": "elsewhere"}
    write_calibration(path, CalibrationRecord("exits-1", "1", fits, True, "At most 2 %."))
    assert make_plan(load_pipeline(path)).ok
    write_calibration(path, CalibrationRecord("exits-1", "1", fits | {"draft.layers": 9}, True, "At most 2 %."))
    with pytest.raises(CheckError, match=r"stale: draft.layers changed"):
        make_plan(load_pipeline(path)).require()


def test_a_record_of_another_backend_is_stale(pipeline: LoadedPipeline, tmp_path: Path) -> None:
    calibrated(pipeline, tmp_path / "cache", Draft(Target()))
    document = json.loads(record_file(pipeline.path).read_text())
    del document["made_for"]["engine.backend"]
    record_file(pipeline.path).write_text(json.dumps(document))
    with pytest.raises(CheckError, match=r"stale: engine.backend changed"):
        make_plan(pipeline).require()


def test_what_the_cache_has_lost_is_missed_by_name(pipeline: LoadedPipeline, exported: list[Any], tmp_path: Path) -> None:
    calibrated(pipeline, tmp_path / "cache", Draft(Target()))
    with pytest.raises(CheckError, match=r"not in the engine cache.*builder calibrate"):
        hand_over(pipeline, tmp_path / "out", tmp_path / "empty", NoProgress())


def test_the_command_asks_at_the_address_it_is_given_and_writes_the_report(
    pipeline: LoadedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(served_calibration, "connected", connecting(Draft(Target()), asked))
    arguments = ["calibrate", str(pipeline.path), "--answers", "150", "--report", str(tmp_path / "report"), "--grpc", "gpu:9001"]
    shown = CliRunner().invoke(app, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document["layers"][0]["layer"] == 1 and not document["cached"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0 and "The same drafts, all verified" in told.stdout
    assert "The same drafts, all verified" in (tmp_path / "report/report.html").read_text()
    assert asked == [("gpu:9001", "tiny")] * 2


def test_the_address_is_refused_where_nothing_is_served(write_pipeline: Any) -> None:
    path = write_pipeline(engine={"backend": "torch_aot", "gpu": None}).path
    told = CliRunner().invoke(app, ["calibrate", str(path), "--grpc", "gpu:9001"])
    assert isinstance(told.exception, SpecError) and "--grpc is for pipelines of trtllm-engine" in str(told.exception)


def test_what_is_tested_holds_all_that_rounds_of_any_length_let_leave() -> None:
    random = np.random.default_rng(0)
    lengths = (40, 9, 96)
    rows = sum(lengths)
    answers = Answers(random.random((rows, 1)), random.random((rows, 1)) < 0.7, lengths)
    for protected in (1, 8):
        in_test = answers.confidence[:, 0] >= 0.3
        for tokens in range(1, 9):
            for pending in (1, 3, 9):
                left = leave_in_rounds(answers, 0.3, ExitLimits(pending, protected), tokens).chosen != FULL
                assert not (left & ~in_test).any() and left.any()
                starts = np.concatenate([np.arange(length) for length in lengths])
                assert not left[starts < protected].any()
