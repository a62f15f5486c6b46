"""What `builder align` was asked holds for later builds until pipeline.yaml says something new."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.align.recipe import AlignmentOptions
from builder.align.record import record_file, wanted_alignment, write_record
from builder.errors import SpecError
from builder.spec.draft import Draft
from builder.spec.load import LoadedPipeline, load_pipeline


def pipeline(folder: Path, alignment: str = "{minutes: 2}") -> tuple[LoadedPipeline, Draft]:
    path = folder / "tiny.yaml"
    path.write_text(f"metadata: {{name: tiny, owner: tests}}\ntarget: {{weights: model}}\ndraft: {{alignment: {alignment}}}\n")
    loaded = load_pipeline(path)
    assert loaded.spec.draft is not None
    return loaded, loaded.spec.draft


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "mine"}\n')
    return path


def test_a_later_build_aligns_as_the_command_was_asked(tmp_path: Path, text: Path) -> None:
    loaded, draft = pipeline(tmp_path)
    assert wanted_alignment(loaded, draft) == AlignmentOptions(2, 0)
    asked = AlignmentOptions(5.0, 1, text)
    write_record(loaded, draft, asked)
    assert wanted_alignment(loaded, draft) == asked
    assert json.loads(record_file(loaded.path).read_text())["text"] == "mine.jsonl"  # the folder can move
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "tiny.alignment.json", "mine.jsonl"}


def test_a_draft_that_pipeline_yaml_does_not_align_can_be_aligned_by_command(tmp_path: Path, text: Path) -> None:
    loaded, draft = pipeline(tmp_path, "null")
    assert wanted_alignment(loaded, draft) is None
    write_record(loaded, draft, AlignmentOptions(5.0, 0, text))
    assert wanted_alignment(loaded, draft) == AlignmentOptions(5.0, 0, text)


def test_the_newest_word_counts(tmp_path: Path, text: Path) -> None:
    loaded, draft = pipeline(tmp_path)
    write_record(loaded, draft, AlignmentOptions(5.0, 1, text))
    changed = pipeline(tmp_path, "{minutes: 3}")
    assert wanted_alignment(*changed) == AlignmentOptions(3, 0)
    write_record(*changed, AlignmentOptions(3, 0))  # what the file says: no record is needed
    assert not record_file(loaded.path).exists()


def test_text_that_pipeline_yaml_names_lies_beside_it(tmp_path: Path, text: Path) -> None:
    loaded, draft = pipeline(tmp_path, "{minutes: 2, text: mine.jsonl}")
    options = wanted_alignment(loaded, draft)
    assert options == AlignmentOptions(2, 0, text)
    assert [prompt.content for prompt in options.recipe("target", "tokenizer").prompts if prompt.category == "yours"] == ["mine"]


def test_a_build_does_not_fall_back_silently_when_the_text_is_gone(tmp_path: Path, text: Path) -> None:
    loaded, draft = pipeline(tmp_path)
    write_record(loaded, draft, AlignmentOptions(5.0, 1, text))
    text.unlink()
    with pytest.raises(SpecError, match=r"mine\.jsonl.*not there any more"):
        wanted_alignment(loaded, draft)
    record_file(loaded.path).write_text("{")
    with pytest.raises(SpecError, match="cannot be read"):
        wanted_alignment(loaded, draft)
