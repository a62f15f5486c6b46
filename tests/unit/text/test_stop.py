"""Stop strings against plain search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import RequestError
from builder.text import StopMatcher

# A small alphabet makes overlaps between text and stop strings, and between stop strings, common.
TEXTS = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)
CHUNKS = st.lists(st.text("ab\n", max_size=6), max_size=12)


def cut_by_search(text: str, stops: list[str]) -> str:
    """What comes before the stop string that is complete first, the longest of those that end there."""
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        return text
    seen = text[: min(ends)]
    return seen[: min(len(seen) - len(stop) for stop in stops if seen.endswith(stop))]


def stream(chunks: list[str], stops: list[str]) -> tuple[list[str], StopMatcher]:
    matcher = StopMatcher(stops)
    return [matcher.push(chunk) for chunk in chunks] + [matcher.push("", final=True)], matcher


@given(CHUNKS, STOPS)
def test_streamed_text_is_what_plain_search_leaves(chunks: list[str], stops: list[str]) -> None:
    parts, matcher = stream(chunks, stops)
    text = "".join(chunks)
    assert "".join(parts) == cut_by_search(text, stops)
    assert matcher.stopped == any(stop in text for stop in stops)


@given(CHUNKS, STOPS)
def test_no_more_is_held_back_than_could_begin_a_stop_string(chunks: list[str], stops: list[str]) -> None:
    matcher, shown, text = StopMatcher(stops), "", ""
    for chunk in chunks:
        shown, text = shown + matcher.push(chunk), text + chunk
        if matcher.stopped:
            break
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@given(TEXTS, STOPS)
def test_one_push_of_the_whole_text_is_enough(text: str, stops: list[str]) -> None:
    assert StopMatcher(stops).push(text, final=True) == cut_by_search(text, stops)


def test_a_stop_string_over_three_chunks_leaves_nothing_of_itself() -> None:
    assert stream(["Hello <", "|en", "d|> more"], ["<|end|>"])[0] == ["Hello ", "", "", ""]


def test_a_false_start_is_given_out_as_soon_as_it_is_one() -> None:
    assert stream(["a<|", "x", "<"], ["<|end|>"])[0] == ["a", "<|x", "", "<"]


def test_the_stop_string_that_was_found_is_reported() -> None:
    _, matcher = stream(["one two"], ["three", "two"])
    assert matcher.matched == "two"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop string is empty"):
        StopMatcher(["x", ""])
