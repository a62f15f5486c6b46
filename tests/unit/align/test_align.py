"""The whole way with a tiny random model: corpus, training, measurement, what is kept, what is left after an interruption."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from builder.align import align as whole
from builder.align.acceptance import measure
from builder.align.align import Limits, align
from builder.align.corpus import Sample, text_samples, write_samples
from builder.align.prompts import Prompt
from builder.align.recipe import RESULT_FILE, AlignmentOptions, AlignmentRecipe, read_result
from builder.align.staging import Parts, staged, staged_engine, staged_tokenizer
from builder.bench.acceptance import Acceptance
from builder.build import build_pipeline
from builder.cli.main import app
from builder.compile.cache import default_cache
from builder.compile.torch_aot.folder import read_info
from builder.compile.torch_aot.library import build_library
from builder.compile.torch_aot.unpacking import read_tensors
from builder.errors import CheckError, SpecError
from builder.spec.draft import Draft
from builder.spec.pipeline import PipelineSpec
from tests.unit.tiny_models import make_tiny_model

PROMPTS = tuple(Prompt("yours", "prompt", f"the thing {number}") for number in range(12))
RECIPE = AlignmentRecipe(1.0, 0, "target", "tokenizer", PROMPTS)
QUICK = Limits(60.0, samples=1, steps=3)


class Bar:
    def __init__(self) -> None:
        self.steps = 0

    def stage(self, title: str, steps: int) -> None:
        self.total = steps

    def advance(self, step: str) -> None:
        self.steps += 1


def run(folder: Path, parts: Parts, spec: PipelineSpec, **options: Any) -> dict[str, Any]:
    options = {"limits": QUICK, "clock": lambda: 0.0, **options}
    align(folder, "fingerprint", RECIPE, parts, spec, folder.parent / "standing.safetensors", Bar(), **options)
    result = read_result(folder)
    assert result is not None
    return result


def rising() -> Callable[..., dict[str, Acceptance]]:
    """Stands in for the measurement: 20 of 40 before, 30 of 40 after."""
    accepted = itertools.cycle((20, 30))
    return lambda *_: {"yours": Acceptance(10, 40, next(accepted))}


def test_the_same_counts_give_the_same_engine_and_what_was_measured(
    parts: Parts, spec: PipelineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_acceptance", rising())
    first, again = run(tmp_path / "a", parts, spec), run(tmp_path / "b", parts, spec)
    assert first == again
    assert first["kept"] and first["steps"] == 3 and first["tokens"] > 100
    assert (tmp_path / "a/weights.safetensors").read_bytes() == (tmp_path / "b/weights.safetensors").read_bytes()
    assert (tmp_path / "a/weights.safetensors").read_bytes() != (parts.draft / "weights.safetensors").read_bytes()
    assert read_info(tmp_path / "a").fingerprint == "fingerprint"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}  # no standing is left


def test_integers_stay_and_only_scales_and_norms_change(
    parts: Parts, spec: PipelineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_acceptance", rising())
    run(tmp_path / "a", parts, spec)
    before, after = read_tensors(parts.draft), read_tensors(tmp_path / "a")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any(name.endswith(".weight") for name in changed)
    assert all(before[name].dtype == after[name].dtype and before[name].shape == after[name].shape for name in before)


def test_a_draft_that_is_not_accepted_more_often_is_not_kept(
    parts: Parts, spec: PipelineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_acceptance", lambda *_: {"yours": Acceptance(10, 40, 20)})
    result = run(tmp_path / "a", parts, spec)
    assert result["kept"] is False
    packed, kept = read_tensors(parts.draft), read_tensors(tmp_path / "a")
    assert packed.keys() == kept.keys()
    assert all(torch.equal(packed[name], kept[name]) for name in packed)


def test_acceptance_before_and_after_come_from_the_real_engine(parts: Parts, spec: PipelineSpec, tmp_path: Path) -> None:
    result = run(tmp_path / "a", parts, spec)
    assert 0 < result["before"]["rate"] < 1 and 1 < result["after"]["length"] < 5
    assert result["before"]["lengths"].keys() == {"yours"}


def test_an_interrupted_alignment_goes_on_with_the_corpus_it_had(
    parts: Parts, spec: PipelineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_acceptance", rising())
    expected = run(tmp_path / "a", parts, spec)
    monkeypatch.setattr(whole, "EVERY", 0.0)
    step, done = whole.Training._step, []

    def interrupted(training: Any, samples: Any, over: Any) -> float:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(step(training, samples, over))
        return done[-1]

    monkeypatch.setattr(whole.Training, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b", parts, spec)
    assert not (tmp_path / "b").exists()
    monkeypatch.setattr(whole.Training, "_step", step)
    monkeypatch.setattr(whole, "_corpus", None)
    monkeypatch.setattr(whole, "_acceptance", rising())
    assert run(tmp_path / "b", parts, spec) == expected
    assert (tmp_path / "a/weights.safetensors").read_bytes() == (tmp_path / "b/weights.safetensors").read_bytes()


def test_time_alone_ends_an_alignment_and_the_bar_is_its_seconds(
    parts: Parts, spec: PipelineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_acceptance", rising())
    now = iter(range(10_000))  # every look at the clock takes a second
    bar = Bar()
    align(tmp_path / "a", "f", RECIPE, parts, spec, tmp_path / "s", bar, limits=Limits(90.0), clock=lambda: float(next(now)))
    result = read_result(tmp_path / "a")
    assert result is not None and result["steps"] > 0
    assert 81 <= result["seconds"] <= 99
    assert (bar.steps, bar.total) == (90, 90)


def test_the_target_writes_the_same_samples_again_and_a_deadline_only_cuts_them(parts: Parts, spec: PipelineSpec) -> None:
    prompts = [(256, 70, 71 + number) for number in range(10)]  # more than run at once

    def write(over: Any = lambda: False) -> list[Sample]:
        with staged(parts, None) as folder:
            return write_samples(staged_engine(folder, spec, 0), prompts, seed=3, samples=2, over=over)

    samples = write()
    assert samples == write()
    assert {sample.ids[:3] for sample in samples} == set(prompts)
    looks = iter([False] * 40 + [True] * 100)
    cut = write(lambda: next(looks))
    assert 0 < sum(sample.rows for sample in cut) < sum(sample.rows for sample in samples)
    by_start = {(sample.ids[:11]): sample for sample in samples}
    assert all(sample.ids == by_start[sample.ids[:11]].ids[: len(sample.ids)] for sample in cut)


def test_a_users_text_is_learned_in_pieces_as_it_stands(parts: Parts) -> None:
    with staged(parts, None) as folder:
        tokenizer = staged_tokenizer(folder)
    samples = text_samples([Prompt("yours", "text", "abc " * 100)], tokenizer, room=64)
    assert all(sample.start == 1 and len(sample.ids) <= 64 for sample in samples)
    assert tokenizer.decode([token for sample in samples for token in sample.ids]) == "abc " * 100


def test_acceptance_is_summed_by_category_for_more_prompts_than_run_at_once(parts: Parts, spec: PipelineSpec) -> None:
    prompts = [("facts" if number % 2 else "code", (256, 70, 71 + number)) for number in range(20)]
    with staged(parts, parts.draft) as folder:
        found = measure(staged_engine(folder, spec, 4), prompts)
        alone = [measure(staged_engine(folder, spec, 4), [prompt])[prompt[0]] for prompt in prompts]
    assert found.keys() == {"facts", "code"}
    assert sum(acceptance.drafted for acceptance in found.values()) == sum(acceptance.drafted for acceptance in alone)
    assert sum(acceptance.accepted for acceptance in found.values()) == sum(acceptance.accepted for acceptance in alone)


def test_everything_that_shapes_an_aligned_draft_changes_its_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "mine"}\n')
    base = AlignmentOptions(5, 0)
    recipes = [
        base.recipe("target", "tokenizer"),
        base.recipe("other weights", "tokenizer"),
        base.recipe("target", "another tokenizer"),
        AlignmentOptions(2, 0).recipe("target", "tokenizer"),
        AlignmentOptions(5, 1).recipe("target", "tokenizer"),
        AlignmentOptions(5, 0, tmp_path / "mine.jsonl").recipe("target", "tokenizer"),
    ]
    names = {recipe.fingerprint(unaligned) for recipe in recipes for unaligned in ("a", "b")}
    assert len(names) == 12
    assert base.recipe("target", "tokenizer").fingerprint("a") == AlignmentOptions(5.0, 0).recipe("target", "tokenizer").fingerprint("a")


def test_a_draft_is_aligned_unless_the_pipeline_says_no(tmp_path: Path) -> None:
    def of(alignment: object) -> AlignmentOptions | None:
        return AlignmentOptions.of(Draft.model_validate({"alignment": alignment}), tmp_path)

    assert of(None) is None
    assert AlignmentOptions.of(Draft(), tmp_path) == AlignmentOptions(5, 0)
    assert of({"minutes": 2, "seed": 7, "text": "mine.jsonl"}) == AlignmentOptions(2, 7, tmp_path / "mine.jsonl")
    with pytest.raises(SpecError):
        AlignmentOptions(5, 0, tmp_path / "missing.jsonl").recipe("target", "tokenizer")


def test_a_folder_without_a_result_was_not_aligned(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    (tmp_path / RESULT_FILE).write_text(json.dumps({"kept": True}))
    assert read_result(tmp_path) == {"kept": True}


def test_the_command_line_takes_the_users_text_and_names_its_bad_line(tmp_path: Path, tiny_weights: Path) -> None:
    pipeline, text = tmp_path / "tiny.yaml", tmp_path / "mine.jsonl"
    pipeline.write_text(f"metadata: {{name: tiny, owner: tests}}\ntarget: {{weights: {tiny_weights}}}\nengine: {{max_seq_len: 256}}\n")
    text.write_text('{"prompt": "good"}\n{"promt": "bad"}\n')
    done = CliRunner().invoke(app, ["align", str(pipeline), "--text", str(text), "--repository", str(tmp_path / "repository")])
    assert isinstance(done.exception, SpecError)
    assert f"{text}:2" in str(done.exception) and "Did you mean prompt?" in str(done.exception)
    pipeline.write_text(pipeline.read_text() + "speculation: {proposer: ngram}\n")
    done = CliRunner().invoke(app, ["align", str(pipeline)])
    assert isinstance(done.exception, CheckError)


def test_a_build_aligns_once_and_says_so_when_the_targets_weights_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "Limits", lambda seconds: QUICK)
    monkeypatch.setattr(AlignmentOptions, "recipe", lambda self, *made_of: replace(RECIPE, target_fingerprint=str(made_of), seed=self.seed))
    cache, repository, pipeline = tmp_path / "cache", tmp_path / "repository", tmp_path / "tiny.yaml"
    cache.mkdir()
    kernels = build_library(default_cache())
    (cache / kernels.name).symlink_to(kernels)
    pipeline.write_text(
        "metadata: {name: tiny, owner: tests}\ntarget: {weights: model}\ndraft: {alignment: {minutes: 1}}\n"
        "engine: {max_seq_len: 256, threads: 1, max_batch_size: 8, kv_cache: {memory: 16MiB}}\n"
    )

    def build(seed: int | None) -> tuple[Any, list[str]]:
        if seed is not None:
            make_tiny_model(tmp_path / "model", seed=seed)
        bars = Stages()
        return build_pipeline(pipeline, repository, cache=cache, progress=bars, verify=False), bars.titles

    result, titles = build(seed=0)
    assert set(result.results["alignment"]) == {"before", "after", "kept", "steps", "tokens", "seconds"}
    assert titles.count("align the draft, seconds") == 1
    assert [path for path in cache.iterdir() if path.name.startswith((".", "alignment-"))] == []
    again, titles = build(seed=0)
    assert again.cached and again.version == result.version and again.results == result.results
    assert "align the draft, seconds" not in titles
    other, titles = build(seed=1)
    assert other.version == 2
    assert other.changed == "the target's weights"
    assert titles[titles.index("align the draft, seconds") - 1] == "the target's weights changed: aligning anew"
    measured = pipeline.read_text() + "speculation: {measured: {acceptance: 0.8}}\n"
    pipeline.write_text(measured)
    assert build(seed=1)[0].changed is None
    forget_a_merge(tmp_path / "model" / "tokenizer.json")
    with pytest.raises(CheckError, match="measured with version 3, and the tokenizer changed since"):
        build(seed=None)
    pipeline.write_text(measured.replace("0.8", "0.7"))
    other, titles = build(seed=None)
    assert (other.version, other.changed) == (4, "the tokenizer")
    assert titles[titles.index("align the draft, seconds") - 1] == "the tokenizer changed: aligning anew"


def forget_a_merge(path: Path) -> None:
    tokenizer = json.loads(path.read_text())
    del tokenizer["model"]["merges"][-1]
    path.write_text(json.dumps(tokenizer))


class Stages:
    def __init__(self) -> None:
        self.titles: list[str] = []

    def stage(self, title: str, steps: int) -> None:
        self.titles.append(title)

    def advance(self, step: str) -> None: ...
