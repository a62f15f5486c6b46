from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import RequestError
from builder.repository.models.prompt import MOST_BYTES_PER_TOKEN, prompt_ids
from builder.repository.tokenizer import eos_token_ids, load_tokenizer, tokenizer_texts
from builder.spec.pipeline import PipelineSpec
from builder.text import Tokenizer
from builder.weights import open_tokenizer
from tests.unit.tiny_models import make_tiny_model

CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokenizer")
    files = open_tokenizer(str(make_tiny_model(root / "model")), root)
    for name, text in tokenizer_texts(files).items():
        (root / name).write_text(text)
    assert eos_token_ids(root) == frozenset(files.eos_token_ids)
    return root


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


SPEC = PipelineSpec.model_validate({"metadata": {"name": "p", "owner": "o"}, "target": {"weights": "w"}, "engine": {"max_seq_len": 64}})


def test_a_raw_prompt_is_tokenized_as_it_is(tokenizer: Tokenizer) -> None:
    assert prompt_ids(tokenizer, "héllo".encode(), None, SPEC) == tokenizer.encode("héllo", add_special_tokens=True)


def test_messages_go_through_the_chat_template(tokenizer: Tokenizer) -> None:
    expected = tokenizer.encode(tokenizer.chat_prompt(CHAT), add_special_tokens=False)
    assert prompt_ids(tokenizer, None, json.dumps(CHAT).encode(), SPEC) == expected


@pytest.mark.parametrize(
    ("text", "messages", "message"),
    [
        (None, None, "needs either text_input or messages"),
        (b"a", b"[]", "but has both"),
        (b"", None, "the prompt is empty"),
        (b"ok \xff", None, "not valid UTF-8 at byte 3"),
        (b"x" * 64, None, "has 64 tokens, but at most 63 fit"),
        (b"x" * (64 * MOST_BYTES_PER_TOKEN + 1), None, "more than 64 tokens can cover"),
        (None, b"hello", "not JSON"),
        (None, b"[" * 10_000, "not JSON"),
        (None, b"[]", "at least one message"),
        (None, b'{"role": "user"}', "JSON list"),
        (None, b'[{"role": "user"}]', r"messages\[0\]: must have the texts"),
        (None, b'[{"role": "user", "content": 3}]', r"messages\[0\]: must have the texts"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_with_the_reason(
    tokenizer: Tokenizer, text: bytes | None, messages: bytes | None, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        prompt_ids(tokenizer, text, messages, SPEC)


def test_the_longest_prompt_that_fits_is_served(tokenizer: Tokenizer) -> None:
    assert len(prompt_ids(tokenizer, b"x" * 63, None, SPEC)) == 63
