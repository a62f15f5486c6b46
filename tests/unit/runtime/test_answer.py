"""Where an answer ends, which tokens may leave, and what the last chunk tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.decoding.params import SamplingParams
from builder.runtime.answer import Answer
from builder.runtime.request import Cancellation, FinishReason, Output, Request
from builder.text.detokenizer import CONTEXT_TOKENS, delta
from builder.text.stop import StopMatcher

EOS = 9


class Pieces(tuple[bytes, ...]):
    strips_space = False


class Letters:
    """Tokens 0..8 are these pieces, 9 is the end-of-sequence token, which has no text."""

    pieces = Pieces((b"a", b"b", b"ab", b"c", b" ", "€".encode()[:1], "€".encode()[1:], b"abc", b"cab", b""))


def answer(sampling: SamplingParams, prompt: tuple[int, ...] = (4,), context: int = 100) -> Answer:
    return Answer(Request("a", prompt, sampling, arrival=5.0), frozenset({EOS}), context, Letters())  # type: ignore[arg-type]


def text_of(chunks: list[Output]) -> str:
    """What a detokenizer without a state shows."""
    shown = ""
    for chunk in chunks:
        text = delta(Letters(), chunk.context_ids, chunk.token_ids, chunk.finish_reason is not None)  # type: ignore[arg-type]
        shown += text if chunk.text_limit < 0 else text[: chunk.text_limit]
    return shown


def decode(rounds: list[list[int]], sampling: SamplingParams, **fields: int) -> tuple[list[int], list[Output]]:
    one, ids, chunks = answer(sampling, **fields), [4], []  # type: ignore[arg-type]
    for now, new in enumerate(rounds, start=6):
        one.take(ids, new)
        chunk = one.output(ids, float(now))
        chunks += [chunk] if chunk else []
        if one.finish_reason:
            break
    return ids[1:], chunks


def test_the_end_of_sequence_inside_a_round_ends_it_and_the_rest_is_dropped() -> None:
    ids, chunks = decode([[0, 1], [0, EOS, 3, 3]], SamplingParams())
    assert ids == [0, 1, 0, EOS]
    assert [chunk.token_ids for chunk in chunks] == [(0, 1), (0, EOS)]
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 4


def test_ignore_eos_goes_on() -> None:
    ids, chunks = decode([[0, EOS, 3], [3]], SamplingParams(max_tokens=4, ignore_eos=True))
    assert ids == [0, EOS, 3, 3]
    assert chunks[-1].finish_reason is FinishReason.LENGTH


def test_max_tokens_cuts_a_round() -> None:
    ids, chunks = decode([[0, 1, 2, 3]], SamplingParams(max_tokens=3))
    assert ids == [0, 1, 2]
    assert chunks[-1].finish_reason is FinishReason.LENGTH


def test_a_full_context_cuts_a_round() -> None:
    ids, chunks = decode([[0, 1], [2, 3]], SamplingParams(max_tokens=50), context=4)
    assert ids == [0, 1, 2]
    assert chunks[-1].finish_reason is FinishReason.LENGTH


def test_each_chunk_brings_the_tokens_just_before_it() -> None:
    _, chunks = decode([[0, 1, 2], [3, 0], [1]], SamplingParams(max_tokens=6))
    sequence = [4, 0, 1, 2, 3, 0, 1]
    starts = [1, 4, 6]
    assert [list(chunk.context_ids) for chunk in chunks] == [sequence[max(0, at - CONTEXT_TOKENS) : at] for at in starts]


def test_the_last_chunk_tells_times_from_arrival_and_usage() -> None:
    _, chunks = decode([[0], [1], [2, 3]], SamplingParams(max_tokens=4))
    stats = chunks[-1].stats
    assert stats is not None
    assert (stats.time_to_first_token, stats.decode_seconds, stats.optimisation) == (1.0, 2.0, "plain")
    assert all(chunk.usage is None and chunk.stats is None for chunk in chunks[:-1])


def test_tokens_that_may_begin_a_stop_string_wait_until_it_is_decided() -> None:
    _, chunks = decode([[3, 0], [1], [4, 3]], SamplingParams(stop=("abc",), max_tokens=5))
    assert [chunk.token_ids for chunk in chunks] == [(3,), (0, 1, 4, 3)]
    assert text_of(chunks) == "cab c"


def test_a_stop_string_across_rounds_cuts_inside_the_chunk() -> None:
    ids, chunks = decode([[4, 0], [1], [8, 0]], SamplingParams(stop=("bc",)))
    assert ids == [4, 0, 1, 8]  # what came after the match is dropped
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert text_of(chunks) == " a"


def test_tokens_released_in_the_round_of_the_match_count_in_the_limit() -> None:
    _, chunks = decode([[3, 3, 7]], SamplingParams(stop=("bc",)))
    assert chunks[0].token_ids == (3, 3, 7)
    assert chunks[0].text_limit == 3
    assert text_of(chunks) == "cca"


def test_what_was_held_back_leaves_when_the_answer_ends_otherwise() -> None:
    _, chunks = decode([[3, 0, 1], [EOS]], SamplingParams(stop=("abc",)))
    assert text_of(chunks) == "cab"


@given(
    st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=4), min_size=1, max_size=10),
    st.lists(st.text("abc €", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_shown_text_is_the_whole_text_up_to_the_first_stop_string(rounds: list[list[int]], stops: list[str]) -> None:
    total = sum(map(len, rounds))
    ids, chunks = decode(rounds, SamplingParams(stop=tuple(stops), max_tokens=total))
    matcher = StopMatcher(stops)
    whole = [token for new in rounds for token in new]
    pieces = b"".join(Letters.pieces[token] for token in whole).decode(errors="replace")
    finished = chunks[-1].finish_reason
    expected = matcher.push(pieces)
    if finished is FinishReason.STOP:
        assert matcher.stopped
        assert text_of(chunks) == expected
        assert ids == whole[: len(ids)]
    else:
        # Only an unfinished character, shown as U+FFFD when the answer ends, can complete nothing: no stop string has one
        assert not matcher.stopped
        assert text_of(chunks) == pieces
    assert [token for chunk in chunks for token in chunk.token_ids] == ids


def test_a_failed_answer_says_why_and_what_was_used() -> None:
    one, ids = answer(SamplingParams()), [4]
    one.take(ids, [0, 1])
    last = one.abandon("the reason")
    assert (last.token_ids, last.finish_reason, last.error) == ((), FinishReason.ERROR, "the reason")
    assert last.usage is not None and last.usage.completion_tokens == 2


@pytest.mark.parametrize(("why", "reason"), [(Cancellation.DEADLINE, FinishReason.TIMEOUT), (Cancellation.CLIENT, FinishReason.CANCELLED)])
def test_an_answer_ended_from_outside_gives_out_what_was_held_back(why: Cancellation, reason: FinishReason) -> None:
    one, ids = answer(SamplingParams(stop=("abc",))), [4]
    one.take(ids, [3, 0, 1])
    first = one.output(ids, 1.0)
    assert first is not None and first.token_ids == (3,)
    last = one.cancel(why, ids, 2.0)
    assert (last.token_ids, last.text_limit, last.finish_reason, last.cancellation) == ((0, 1), -1, reason, why)
    assert last.usage is not None and last.usage.completion_tokens == 3
