"""Streaming text: chunks joined are the whole text, whatever the tokens and wherever they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.text import CONTEXT_TOKENS, Tokenizer, delta
from tests.unit.text.tokenizers_for_tests import byte_level, ids_of, sentencepiece, sentencepiece_backend
from tests.unit.tiny_models import tiny_tokenizer

BYTE_LEVEL, SENTENCEPIECE = byte_level(), sentencepiece()
FAMILIES = st.sampled_from([BYTE_LEVEL, SENTENCEPIECE])
# Ids beyond the vocabulary stand for a model's padding rows. Bytes of unfinished characters are made likely.
HARD = ids_of("<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xE4>", "<0xC3>", "<s>", "▁", "▁Hello")
IDS = st.lists(st.one_of(st.integers(0, 300), st.sampled_from(HARD)), max_size=16)


def byte_ids(text: str) -> list[int]:
    """One byte-level token per byte."""
    return [i for character in text for i in BYTE_LEVEL.encode(character, False)]


def stream(tokenizer: Tokenizer, context: list[int], chunks: list[list[int]], window: int | None = None) -> list[str]:
    """Stateless streaming as the server does it: each chunk carries the last tokens before it."""
    parts, seen = [], list(context)
    for place, chunk in enumerate(chunks):
        carried = seen if window is None else seen[-window:]
        parts.append(delta(tokenizer, carried, chunk, final=place == len(chunks) - 1))
        seen += chunk
    return parts


@given(FAMILIES, IDS, st.lists(IDS, min_size=1, max_size=6))
@settings(max_examples=300)
def test_chunks_joined_are_the_whole_text(tokenizer: Tokenizer, context: list[int], chunks: list[list[int]]) -> None:
    whole = delta(tokenizer, context, [i for chunk in chunks for i in chunk], final=True)
    assert "".join(stream(tokenizer, context, chunks)) == whole


@given(FAMILIES, IDS, st.lists(IDS, min_size=1, max_size=6))
@settings(max_examples=300)
def test_the_stated_number_of_context_tokens_is_enough(tokenizer: Tokenizer, context: list[int], chunks: list[list[int]]) -> None:
    assert stream(tokenizer, context, chunks, window=CONTEXT_TOKENS) == stream(tokenizer, context, chunks)


def test_one_context_token_less_is_not_enough() -> None:
    start = ids_of("<s>", "<s>", "<s>", "<s>")
    assert delta(SENTENCEPIECE, start[:CONTEXT_TOKENS], ids_of("▁Hello"), True) == " Hello"
    assert delta(SENTENCEPIECE, start[: CONTEXT_TOKENS - 1], ids_of("▁Hello"), True) == "Hello"


def test_many_special_tokens_at_the_start_give_one_text_however_they_are_cut() -> None:
    ids = ids_of("<s>", "<s>", "<s>", "<s>", "▁Hello")
    assert delta(SENTENCEPIECE, [], ids, True) == "".join(stream(SENTENCEPIECE, [], [ids[:4], ids[4:]], window=CONTEXT_TOKENS)) == " Hello"


@given(FAMILIES, IDS, IDS)
def test_no_more_than_one_unfinished_character_is_held_back(tokenizer: Tokenizer, context: list[int], ids: list[int]) -> None:
    shown, whole = delta(tokenizer, context, ids, False), delta(tokenizer, context, ids, True)
    assert whole in {shown, shown + "\ufffd"}


@given(st.text(max_size=20))
def test_encoded_text_comes_back_token_by_token(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, False)
    assert "".join(stream(BYTE_LEVEL, [], [[i] for i in ids] + [[]])) == text


@given(st.lists(st.integers(0, 287), max_size=16))
def test_byte_level_text_is_that_of_the_tokenizers_package(ids: list[int]) -> None:
    backend = tiny_tokenizer(288)
    special = {256, 257, 258}
    if not special.intersection(ids):
        assert BYTE_LEVEL.decode(ids) == backend.decode(ids)


@given(st.lists(st.sampled_from(ids_of("▁Hello", "▁world", "▁", "Hello", "é", "漢", "▁▁")), max_size=8))
def test_sentencepiece_text_is_that_of_the_tokenizers_package(ids: list[int]) -> None:
    assert SENTENCEPIECE.decode(ids_of("<s>") + ids) == sentencepiece_backend().decode(ids_of("<s>") + ids)


@pytest.mark.parametrize("character", ["é", "漢", "😀", "\U0010ffff"])
def test_a_character_over_several_tokens_appears_with_the_last(character: str) -> None:
    ids = byte_ids(character)
    assert len(ids) == len(character.encode())
    assert stream(BYTE_LEVEL, byte_ids("a"), [[i] for i in ids]) == [""] * (len(ids) - 1) + [character]


def test_a_character_that_began_in_the_context_is_finished() -> None:
    ids = byte_ids("😀")
    assert delta(BYTE_LEVEL, ids[:3], ids[3:] + byte_ids("!"), final=False) == "😀!"


def test_text_of_the_context_is_not_repeated() -> None:
    assert delta(BYTE_LEVEL, byte_ids("the "), byte_ids("end"), final=False) == "end"


def test_an_unfinished_character_is_marked_when_nothing_follows() -> None:
    ids = byte_ids("😀")[:2]
    assert delta(BYTE_LEVEL, [], ids, final=False) == ""
    assert delta(BYTE_LEVEL, [], ids, final=True) == "\ufffd"
    assert delta(BYTE_LEVEL, ids, [], final=True) == "\ufffd"


def test_invalid_bytes_are_marked_at_once() -> None:
    continuation = byte_ids("é")[1:]
    assert delta(BYTE_LEVEL, [], continuation, final=False) == "\ufffd"
    assert delta(BYTE_LEVEL, byte_ids("😀")[:2], byte_ids("a"), final=False) == "\ufffda"


def test_a_replacement_mark_in_the_text_itself_is_not_held_back() -> None:
    assert delta(BYTE_LEVEL, [], byte_ids("\ufffd"), final=False) == "\ufffd"


def test_a_special_token_has_no_text_and_ends_an_unfinished_character() -> None:
    first, rest = byte_ids("é")[:1], byte_ids("é")[1:]
    assert delta(BYTE_LEVEL, [], [*byte_ids("a"), 257], final=False) == "a"
    assert delta(BYTE_LEVEL, first, [257, *rest], final=True) == "\ufffd\ufffd"


def test_the_space_before_the_first_word_is_dropped_only_at_the_start_of_the_text() -> None:
    hello, world = ids_of("▁Hello"), ids_of("▁world")
    assert SENTENCEPIECE.decode(hello + world) == "Hello world"
    assert SENTENCEPIECE.decode(ids_of("<s>") + hello) == "Hello"
    assert delta(SENTENCEPIECE, hello, world, final=False) == " world"


def test_only_one_leading_space_is_dropped() -> None:
    assert SENTENCEPIECE.decode(ids_of("▁▁", "▁Hello")) == "  Hello"


def test_bytes_of_a_sentencepiece_tokenizer_make_characters() -> None:
    assert stream(SENTENCEPIECE, ids_of("th"), [ids_of("<0xC3>"), ids_of("<0xA9>")]) == ["", "é"]
