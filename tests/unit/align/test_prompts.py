"""Shipped prompts and the user's own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.align.prompts import Prompt, prompt_tokens, read_prompts, shipped_prompts
from builder.bench.acceptance import PROMPTS
from builder.errors import SpecError
from builder.text import Tokenizer
from tests.unit.tiny_models import CHAT_TEMPLATE, tiny_tokenizer

CATEGORIES = {"facts", "code", "rewrite", "chat", "lists", "mail"}


def test_every_category_has_prompts_to_learn_from_and_to_measure_on() -> None:
    prompts = shipped_prompts()
    assert len({prompt.content for prompt in prompts}) == len(prompts) >= 60
    assert {prompt.category for prompt in prompts if prompt.held_out} == CATEGORIES
    learned = Counter(prompt.category for prompt in prompts if not prompt.held_out)
    assert min(learned[category] for category in CATEGORIES) >= 6


def test_no_prompt_of_the_acceptance_measurement_is_trained_on() -> None:
    contents = [json.loads(prompt.content)[0]["content"] for prompt in shipped_prompts()]
    assert not set(contents) & set(PROMPTS)


@given(st.text(min_size=1))
def test_a_prompt_is_on_the_same_side_every_time_and_a_text_is_always_learned(content: str) -> None:
    assert Prompt("yours", "prompt", content).held_out == Prompt("facts", "messages", content).held_out
    assert not Prompt("yours", "text", content).held_out


def test_prompts_messages_and_texts_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    message = {"role": "user", "content": "Hello"}
    path.write_text('{"prompt": "Once"}\n\n' + json.dumps({"messages": [message]}) + '\n{"text": "All\\u2028of it"}\n', "utf-8")
    prompts = read_prompts(path)
    assert [(prompt.category, prompt.kind) for prompt in prompts] == [("yours", "prompt"), ("yours", "messages"), ("yours", "text")]
    assert prompts[2].content == "All\u2028of it"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "one object with one key"),
        ('{"promt": "x"}', "Did you mean prompt?"),
        ('{"prompt": 1}', "must be a text"),
        ('{"text": "  "}', "must be a text"),
        ('{"messages": [{"role": "user"}]}', "role"),
        ('{"messages": []}', "messages must be a list"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(SpecError) as caught:
        read_prompts(path)
    assert caught.value.where == f"{path}:2"
    assert message in str(caught.value)


def test_a_file_without_prompts_or_that_is_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    for name in ("empty.jsonl", "missing.jsonl", "binary.jsonl"):
        with pytest.raises(SpecError, match=name):
            read_prompts(tmp_path / name)


def test_a_chat_takes_the_template_and_a_prompt_stays_as_it_is() -> None:
    tokenizer = Tokenizer(tiny_tokenizer().to_str(), CHAT_TEMPLATE)
    chat = Prompt("facts", "messages", json.dumps([{"role": "user", "content": "abc"}]))
    assert tokenizer.decode(prompt_tokens(chat, tokenizer)).startswith("user\nabc")
    assert tokenizer.decode(prompt_tokens(Prompt("yours", "prompt", "abc"), tokenizer)) == "abc"
    plain = Tokenizer(tiny_tokenizer().to_str())
    assert plain.decode(prompt_tokens(chat, plain)) == "abc"
