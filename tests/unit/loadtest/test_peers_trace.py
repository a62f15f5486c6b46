"""Rates from arrival times: decode apart from prefill, medians over rounds and prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.peers.trace import Trace, summarise


def _trace(kind: str, arrivals: list[tuple[float, int]], rounds: int | None = None, prompt_tokens: int = 10) -> Trace:
    return Trace(kind, prompt_tokens, 0.0, arrivals, rounds)


def _steady(kind: str, tok_s: float, ttft_s: float = 0.5) -> Trace:
    return _trace(kind, [(ttft_s, 1), (ttft_s + 1.0, 0), (ttft_s + 10 / tok_s, 10)])


def test_the_first_arrival_is_prefill_and_does_not_count_as_decoded() -> None:
    trace = _trace("facts", [(2.0, 3), (3.0, 1), (4.0, 4)])
    assert trace.ttft_s == 2.0
    assert trace.decoded == 5
    assert trace.decode_tok_s == 2.5


def test_an_answer_that_came_at_once_has_no_decode_rate() -> None:
    assert _trace("facts", [(1.0, 7)]).decode_tok_s is None


def test_the_rate_is_the_median_over_prompts_of_the_median_over_rounds() -> None:
    summary = summarise(
        [
            [_steady("facts", 10), _steady("facts", 100), _steady("facts", 20)],
            [_steady("code", 40)],
            [_steady("code", 60)],
        ]
    )
    assert summary.tok_s == pytest.approx(40)
    assert summary.by_class == {"facts": pytest.approx(20), "code": pytest.approx(50)}
    assert summary.ttft_ms == pytest.approx(500)
    assert summary.prompt_tok_s == pytest.approx(20)
    assert summary.acceptance_length is None


def test_answers_that_came_at_once_are_left_out_and_none_left_is_an_error() -> None:
    at_once = _trace("code", [(1.0, 7)])
    assert summarise([[at_once], [_steady("facts", 10)]]).by_class == {"facts": pytest.approx(10)}
    with pytest.raises(ValueError, match="longer than its first tokens"):
        summarise([[at_once]])


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=20), min_size=1, max_size=5))
def test_the_acceptance_length_is_tokens_per_target_pass(answers: list[list[int]]) -> None:
    traces = [[_trace("facts", [(1.0, 1), *((2.0 + place, count) for place, count in enumerate(a))], len(a))] for a in answers]
    length = summarise(traces).acceptance_length
    assert length == pytest.approx(sum(map(sum, answers)) / sum(map(len, answers)))
