"""Prompts and answers that the target writes for a calibration, and what its layers hold while it reads them."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from builder.align.prompts import Prompt, shipped_prompts
from builder.align.staging import Parts, staged, staged_spec
from builder.compile.reference import hidden_states
from builder.exits import questions
from builder.exits.passages import SHARES, Part, Passage, part_of, text_passages, write_passages, write_questions
from builder.exits.states import TOP, load_states, read_states
from builder.repository.engine import EngineParts, open_parts
from builder.spec.load import load_pipeline
from builder.spec.pipeline import PipelineSpec
from builder.weights import open_checkpoint
from tests.unit.exits.conftest import LAYERS

PROMPTS = [Prompt("yours", "prompt", f"the thing number {number}") for number in range(12)]


@pytest.fixture(scope="module")
def opened(parts: Parts, spec: PipelineSpec) -> EngineParts:
    with staged(parts, None) as folder:
        return open_parts(folder, staged_spec(spec, 0))


@pytest.fixture(scope="module")
def passages(opened: EngineParts) -> list[Passage]:
    return write_passages(opened.engine(), opened.tokenizer, PROMPTS)


def test_questions_begin_as_shipped_prompts_do_and_follow_from_the_seed() -> None:
    first = list(itertools.islice(questions.beginnings(shipped_prompts(), 3), 20))
    assert first == list(itertools.islice(questions.beginnings(shipped_prompts(), 3), 20))
    assert first != list(itertools.islice(questions.beginnings(shipped_prompts(), 4), 20))
    starts = [prompt.content for prompt in shipped_prompts()]
    assert all(any(words in content for content in starts) for words, _ in first)
    assert all(1 <= len(words.split()) <= 4 for words, _ in first)
    assert list(questions.beginnings([Prompt("yours", "text", "only a text")], 0)) == []


def test_the_target_goes_on_inside_the_user_s_turn(opened: EngineParts) -> None:
    ids = questions.opened("What causes", opened.tokenizer)
    assert opened.tokenizer.decode(ids).endswith("user\nWhat causes")
    written = write_questions(opened.engine(), opened.tokenizer, [("What causes", 1), ("Name", 2), ("What causes", 3)])
    assert len({prompt.content for prompt in written}) == len(written) > 0
    assert all(prompt.kind == "messages" for prompt in written)
    assert questions.question("Hi", "", opened.tokenizer) is None


def test_parts_have_their_shares_and_a_prompt_is_always_in_the_same() -> None:
    prompts = [Prompt("yours", "prompt", str(number)) for number in range(4000)]
    found = Counter(part_of(prompt) for prompt in prompts)
    assert [round(found[part] / 40) for part in Part] == pytest.approx(SHARES, abs=3)
    assert all(part_of(prompt) is part_of(prompt) for prompt in prompts[:50])


def test_a_user_s_text_is_only_learned(opened: EngineParts) -> None:
    found = text_passages([Prompt("yours", "text", "the thing is here and there " * 20)], opened.tokenizer, 128)
    assert {passage.part for passage in found} == {Part.LEARN}
    assert all(len(passage.prompt) == 1 and passage.rows > 0 for passage in found)


def test_states_are_those_of_the_layers_and_the_full_model_s_tokens_those_it_wrote(
    opened: EngineParts, passages: list[Passage], pipeline: object
) -> None:
    states = read_states(opened.target, passages, LAYERS, opened.settings.block_size)
    assert states.best.tolist() == [token for passage in passages for token in passage.answer]
    assert states.lengths.tolist() == [passage.rows for passage in passages]
    learned = int(states.rows_of(Part.LEARN).sum())
    assert states.likely.shape == (learned, TOP) and states.counts.sum() == learned
    assert (states.likely[:, 0] == states.best[states.rows_of(Part.LEARN)]).all()
    loaded = load_pipeline(pipeline)  # type: ignore[arg-type]
    checkpoint = open_checkpoint(loaded.spec.target.weights, loaded.base)
    tensors = {name: checkpoint.tensor(name).float() for name in checkpoint.names()}
    ids = torch.tensor([*passages[0].prompt, *passages[0].answer[:-1]])
    expected = hidden_states(tensors, checkpoint.config, ids)
    for place, layer in enumerate(LAYERS):
        found, wanted = states.hidden[place][: passages[0].rows], expected[layer][-passages[0].rows :]
        assert float((found - wanted).norm() / wanted.norm()) < 0.06  # bfloat16 against float32


def test_states_come_back_from_a_file_and_a_torn_one_is_none(opened: EngineParts, passages: list[Passage], tmp_path: object) -> None:
    states = read_states(opened.target, passages[:3], LAYERS, opened.settings.block_size)
    path = tmp_path / "states.safetensors"  # type: ignore[operator]
    assert load_states(path) is None
    states.save(path)
    again = load_states(path)
    assert again is not None and torch.equal(again.hidden, states.hidden) and torch.equal(again.parts, states.parts)
    path.write_bytes(path.read_bytes()[:-100])
    assert load_states(path) is None
