"""Text to ids and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from builder.errors import RequestError, TokenizerError
from builder.text import Tokenizer
from tests.unit.text.tokenizers_for_tests import byte_level, sentencepiece
from tests.unit.tiny_models import BOS, CHAT_TEMPLATE, EOS, tiny_tokenizer

BYTE_LEVEL, SENTENCEPIECE = byte_level(), sentencepiece()


@given(st.text(max_size=40))
def test_byte_level_text_survives_the_round_trip(text: str) -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text, add_special_tokens=False)) == text


@given(st.text(st.characters(exclude_characters="\u2581", exclude_categories=["Cs"]), max_size=40))
def test_sentencepiece_text_survives_the_round_trip(text: str) -> None:
    assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(text, add_special_tokens=True)) == text


def test_a_saved_limit_does_not_cut_or_pad_prompts() -> None:
    backend = tiny_tokenizer(288)
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    assert len(Tokenizer(backend.to_str()).encode("x" * 20, False)) == 20
    assert len(Tokenizer(backend.to_str()).encode("x", False)) == 1


def test_special_tokens_in_text_are_recognised_and_leave_no_text() -> None:
    ids = BYTE_LEVEL.encode(f"{BOS}hi{EOS}", add_special_tokens=False)
    assert (ids[0], ids[-1]) == (256, 257)
    assert BYTE_LEVEL.decode(ids) == "hi"


def test_the_vocabulary_counts_added_tokens() -> None:
    assert BYTE_LEVEL.vocab_size == 288


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    assert BYTE_LEVEL.decode([71, 5000, -1, 1 << 40, 71]) == "hh"


def test_an_unpaired_surrogate_is_refused() -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        BYTE_LEVEL.encode("\ud800", add_special_tokens=False)


def test_a_tokenizer_that_is_not_json_is_refused() -> None:
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer("{")


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece()])
def test_a_decoder_of_another_family_is_refused(decoder: decoders.WordPiece | None) -> None:
    backend = Backend(models.BPE())
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(TokenizerError, match=r"decoder .* is not supported.*byte-level"):
        Tokenizer(backend.to_str())


def test_a_metaspace_decoder_drops_the_first_space_unless_told_never_to() -> None:
    backend = Backend(models.BPE(vocab={"\u2581a": 0, "b": 1}, merges=[]))
    backend.decoder = decoders.Metaspace()
    assert Tokenizer(backend.to_str()).decode([0, 0, 1]) == "a ab" == backend.decode([0, 0, 1])
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    assert Tokenizer(backend.to_str()).decode([0, 0, 1]) == " a ab" == backend.decode([0, 0, 1])


def test_messages_become_a_prompt_of_special_tokens() -> None:
    tokenizer = Tokenizer(tiny_tokenizer().to_str(), CHAT_TEMPLATE, BOS, EOS)
    prompt = tokenizer.chat_prompt([{"role": "user", "content": "hi"}])
    assert tokenizer.encode(prompt, add_special_tokens=False).count(256) == 2


def test_messages_without_a_template_are_refused() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        BYTE_LEVEL.chat_prompt([{"role": "user", "content": "hi"}])
