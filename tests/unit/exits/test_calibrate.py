"""The whole way with a tiny random model: heads, thresholds, the record beside the pipeline, and a build that goes by it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from builder.build import build_pipeline
from builder.calibrate import calibrate_pipeline
from builder.cli.main import app
from builder.decoding.exits.rule import ExitLimits
from builder.decoding.params import SamplingParams
from builder.errors import BuildError, CheckError, EngineError, SpecError
from builder.exits import calibrate as whole
from builder.exits.calibrate import Limits
from builder.exits.recipe import CalibrationOptions
from builder.plan.calibration import read_calibration, record_file
from builder.plan.make import make_plan
from builder.repository.engine import open_parts
from builder.repository.exits import open_draft_exit, open_exits, read_calibration_file
from builder.repository.live import serving_version
from builder.runtime.request import Output, Request
from builder.spec.load import load_pipeline
from tests.unit.exits.conftest import cache_with_kernels, write_pipeline
from tests.unit.tiny_models import make_tiny_model

QUICK = Limits(portion=60, steps=40)
OPTIONS = CalibrationOptions(answers=60)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cache_with_kernels(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    make_tiny_model(folder / "tiny", layers=4)
    return write_pipeline(folder)


@pytest.fixture(scope="module")
def found(place: Path, cache: Path) -> dict[str, object]:
    return calibrate_pipeline(place, OPTIONS, cache=cache, limits=QUICK).to_json()


def verdict(path: Path, rule: str) -> tuple[bool, str]:
    finding = next(finding for finding in make_plan(load_pipeline(path)).findings if finding.id == rule)
    return finding.ok, f"{finding.message}. {finding.mend}"


def test_it_reports_agreement_confidence_thresholds_and_the_bound_and_leaves_a_record(
    place: Path, cache: Path, found: dict[str, object]
) -> None:
    layers = found["layers"]
    assert isinstance(layers, list) and [entry["layer"] for entry in layers] == [2, 3]
    for entry in layers:
        assert entry["agreement_after"] > entry["agreement_before"]
        assert set(entry["auroc"]) == {"probability", "margin", "entropy"}
    assert found["measure"] in ("probability", "margin", "entropy")
    held_out = found["held_out"]
    assert isinstance(held_out, dict) and 2 <= held_out["average_layers"] < 4 and held_out["disagreement"] <= 0.4
    record = read_calibration(place)
    assert record is not None and record.bounded and record.guarantee == found["guarantee"]
    assert "60% confidence, at most 40.00%" in record.guarantee and "not truth" in record.guarantee
    assert (cache / record.folder / "calibration.json").is_file()
    assert not list(cache.glob("exit-work-*"))


def test_the_same_again_is_a_cache_hit_and_another_bound_trains_nothing(
    place: Path, cache: Path, found: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_train", lambda *_: pytest.fail("trained again"))
    assert calibrate_pipeline(place, OPTIONS, cache=cache, limits=QUICK).cached
    shutil.copytree(place.parent / "tiny", tmp_path / "tiny")
    other = write_pipeline(tmp_path, quality={"max_disagreement": 0.0001, "confidence": 0.6})
    result = calibrate_pipeline(other, OPTIONS, cache=cache, limits=QUICK)
    assert not result.cached
    assert all(entry["threshold"] is None for entry in result.found["layers"])
    assert "early exit stays off" in result.found["guarantee"]
    ok, says = verdict(other, "exit-calibrated")
    assert not ok and "No thresholds were found" in says and "max_disagreement" in says
    for change in ({"protected_tokens": 9}, {"layers": "auto"}):  # auto's layers are the same two
        early_exit = {"mode": "answer", "layers": [2, 3], "max_pending": 2, "protected_tokens": 3, **change}
        assert not calibrate_pipeline(write_pipeline(tmp_path, early_exit=early_exit), OPTIONS, cache=cache, limits=QUICK).cached


def test_an_interrupted_run_goes_on_where_it_stood_and_ends_the_same(
    place: Path, found: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_with_kernels(tmp_path)
    train, read = whole._train, whole.read_states
    monkeypatch.setattr(whole, "_train", raising_at_the_second(train))
    with pytest.raises(KeyboardInterrupt):
        calibrate_pipeline(place, OPTIONS, cache=tmp_path, limits=QUICK)
    assert len(list(tmp_path.glob("exit-work-*/*.safetensors"))) == 2  # the states, and the first head
    monkeypatch.setattr(whole, "_train", train)
    monkeypatch.setattr(whole, "read_states", lambda *_: pytest.fail(f"{read} again"))
    again = calibrate_pipeline(place, OPTIONS, cache=tmp_path, limits=QUICK).to_json()
    for key in ("layers", "held_out", "choice"):
        assert again[key] == found[key]


def raising_at_the_second(train: Callable[..., object]) -> Callable[..., object]:
    calls: list[int] = []

    def wrapped(*arguments: object) -> object:
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return train(*arguments)

    return wrapped


def test_a_build_without_a_calibration_or_with_a_stale_one_says_which_command_to_run(
    place: Path, cache: Path, found: dict[str, object], tmp_path: Path
) -> None:
    make_tiny_model(tmp_path / "tiny", layers=4, seed=1)
    other = write_pipeline(tmp_path)
    with pytest.raises(CheckError, match=r"never calibrated.*builder calibrate .*tiny.yaml"):
        build_pipeline(other, tmp_path / "repository", cache=cache)
    shutil.copyfile(record_file(place), record_file(other))
    with pytest.raises(CheckError, match=r"stale: target.weights changed.*builder calibrate"):
        build_pipeline(other, tmp_path / "repository", cache=cache)
    shutil.copytree(place.parent / "tiny", tmp_path / "tiny", dirs_exist_ok=True)
    assert verdict(other, "exit-calibrated")[0]
    for change, name in (({"layers": [2]}, "layers"), ({"layers": "auto"}, "layers"), ({"protected_tokens": 4}, "protected_tokens")):
        write_pipeline(tmp_path, early_exit={"mode": "answer", "layers": [2, 3], "max_pending": 2, "protected_tokens": 3, **change})
        assert f"stale: early_exit.{name} changed" in verdict(other, "exit-calibrated")[1]
    record_file(other).write_text("{}")
    with pytest.raises(SpecError, match="calibration cannot be read"):
        make_plan(load_pipeline(other))


def test_a_built_version_lets_tokens_leave_and_tells(place: Path, cache: Path, found: dict[str, object], tmp_path: Path) -> None:
    result = build_pipeline(place, tmp_path, cache=cache, verify=False)
    assert result.results["early_exit"]["guarantee"] == found["guarantee"]
    version = serving_version(tmp_path, "tiny")
    assert version.manifest.fingerprints["exits"]
    assert read_calibration_file(version.decode_folder / "exits")["measure"] == found["measure"]
    parts = open_parts(version.decode_folder, load_pipeline(place).spec)
    assert parts.exits is not None and parts.exits.limits == ExitLimits(max_pending=2, protected_tokens=3)
    engine, outputs = parts.engine(), list[Output]()
    for number in range(4):
        engine.submit(Request(str(number), (number + 5, 7, 9), SamplingParams(max_tokens=40, ignore_eos=True)), outputs.append)
    while engine.step():
        pass
    stats = [output.stats for output in outputs if output.stats is not None]
    assert len(stats) == 4 and any(found.optimisation == "early_exit" for found in stats)
    assert all(sum(found.exit_layers.values()) == 40 and found.exit_layers[4] >= 3 + 37 // 3 for found in stats)


def test_a_version_in_mode_draft_needs_no_bound_and_keeps_every_token(
    place: Path, cache: Path, found: dict[str, object], tmp_path: Path
) -> None:
    shutil.copytree(place.parent / "tiny", tmp_path / "tiny")
    sections = {"early_exit": {"mode": "draft", "layers": [2, 3], "max_pending": 2, "calibration": {"answers": 60}}}
    drafting = write_pipeline(
        tmp_path, **sections, speculation={"proposer": "early_exit", "control": {"adaptive": False}}, quality={"max_disagreement": 0.0001}
    )
    result = calibrate_pipeline(drafting, OPTIONS, cache=cache, limits=QUICK)
    assert all(entry["threshold"] is None for entry in result.found["layers"]) and result.found["draft"]["layer"] in (2, 3)
    build_pipeline(drafting, tmp_path / "repository", cache=cache, verify=False)
    version = serving_version(tmp_path / "repository", "tiny")
    parts = open_parts(version.decode_folder, load_pipeline(drafting).spec)
    assert parts.draft_exit is not None and parts.exits is None
    parts = replace(parts, draft_exit=replace(parts.draft_exit, threshold=0.001))  # random weights are never sure

    def answers(**settings: object) -> list[Output]:
        engine, outputs = replace(parts, settings=replace(parts.settings, prefix_caching=False, **settings)).engine(), []
        for number in range(4):
            engine.submit(Request(str(number), (number + 5, 7, 9), SamplingParams(max_tokens=40, ignore_eos=True)), outputs.append)
        while engine.step():
            pass
        return outputs

    def tokens(outputs: list[Output]) -> dict[str, list[int]]:
        by_name: dict[str, list[int]] = {}
        for output in outputs:
            by_name.setdefault(output.request_id, []).extend(output.token_ids)
        return by_name

    drafted, plain = answers(), answers(proposer="none")
    assert tokens(drafted) == tokens(plain)
    assert sum(output.stats.num_draft_tokens for output in drafted if output.stats is not None) > 0


def test_a_calibration_of_before_there_were_drafts_is_missed_by_name(tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(EngineError, match=r"nothing of drafts.*builder calibrate"):
        open_draft_exit(tmp_path, lambda _: pytest.fail("no head to open"))


def test_a_version_of_before_tokens_were_protected_serves_as_its_thresholds_were_tested(tmp_path: Path) -> None:
    found = {"layers": [], "measure": "probability", "temperature": 0.0, "bound": {"max_pending": 4}}
    (tmp_path / "calibration.json").write_text(json.dumps(found))
    assert open_exits(tmp_path, lambda _: pytest.fail("no head to open")).limits == ExitLimits(max_pending=4, protected_tokens=1)


@pytest.mark.parametrize(("mode", "proposer"), [("draft", "none"), ("draft", "ngram"), ("answer", "early_exit"), ("none", "early_exit")])
def test_mode_draft_and_its_proposer_go_together(tmp_path: Path, mode: str, proposer: str) -> None:
    path = write_pipeline(tmp_path, early_exit={"mode": mode}, speculation={"proposer": proposer})
    with pytest.raises(SpecError, match="do not go together"):
        load_pipeline(path)


def test_heads_gone_from_the_cache_are_missed_by_name(place: Path, cache: Path, found: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"not in the engine cache.*builder calibrate"):
        build_pipeline(place, tmp_path / "repository", cache=tmp_path / "empty")


def test_early_exit_beside_speculation_or_after_the_last_layer_is_refused(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place.parent / "tiny", tmp_path / "tiny")
    with_draft = write_pipeline(tmp_path, draft={"weights": "same"}, speculation={"proposer": "draft_model"})
    ok, says = verdict(with_draft, "exit-without-speculation")
    assert not ok and "INT4 draft" in says
    with_ngram = write_pipeline(tmp_path, speculation={"proposer": "ngram"})
    assert not verdict(with_ngram, "exit-without-speculation")[0]
    beyond = write_pipeline(tmp_path, early_exit={"mode": "answer", "layers": [2, 4]})
    assert verdict(beyond, "exit-layers-valid") == (False, "early_exit.layers has 4, the model 4 layers. Use layers below 4")
    with pytest.raises(CheckError, match="Use layers below 4"):
        calibrate_pipeline(beyond, OPTIONS, cache=tmp_path)
    unsorted = write_pipeline(tmp_path, early_exit={"mode": "answer", "layers": [3, 2]})
    with pytest.raises(SpecError, match="ascend"):
        load_pipeline(unsorted)


def test_too_few_answers_are_told(place: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "write_passages", lambda *_: [])
    monkeypatch.setattr(whole, "read_states", lambda *_: pytest.fail("nothing to read"))
    with pytest.raises(BuildError, match="Allow more answers"):
        calibrate_pipeline(place, replace(OPTIONS, seed=9), cache=cache, limits=QUICK)


def test_the_command_prints_one_document_and_writes_the_report(
    place: Path, cache: Path, found: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(cache))
    monkeypatch.setattr(whole, "Limits", lambda: QUICK)
    arguments = ["calibrate", str(place), "--answers", "60", "--report", str(tmp_path / "report")]
    shown = CliRunner().invoke(app, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document["cached"] and document["layers"] == found["layers"]
    assert json.loads((tmp_path / "report/report.json").read_text())["guarantee"] == found["guarantee"]
    page = (tmp_path / "report/report.html").read_text()
    assert page.count("<svg") == 2 and "Agreement with the full model" in page
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0 and "layers a token" in told.stdout and "agreement before" in told.stdout
    assert "Mode draft: the exit after layer" in told.stdout and "Mode draft" in page


def test_the_shipped_pipeline_loads_and_names_its_command() -> None:
    path = Path("pipelines/smollm2-early-exit.yaml")
    document = yaml.safe_load(path.read_text())
    assert document["early_exit"]["mode"] == "answer" and document["speculation"]["proposer"] == "none"
    assert load_pipeline(path).spec.early_exit.exit_layers(30) == (20, 25)
