"""Bad requests are refused at submit, by field, value and range."""

from __future__ import annotations

import math

import pytest

from builder.decoding.params import SamplingParams
from builder.errors import RequestError
from builder.runtime.request import Request
from builder.runtime.settings import EngineSettings
from builder.runtime.validation import check_request

SETTINGS = EngineSettings(max_seq_len=20, num_blocks=4, block_size=4)


def check(prompt: tuple[int, ...] = (1,), **sampling: object) -> None:
    check_request(Request("a", prompt, SamplingParams(**sampling)), SETTINGS, 10, has_tokenizer=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -3),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("logprobs", -1),
        ("logprobs", 21),
    ],
)
def test_a_sampling_value_out_of_range_is_named(field: str, value: float) -> None:
    with pytest.raises(RequestError) as error:
        check(**{field: value})
    assert error.value.where == field
    assert f"{field} is {value}, it must be" in str(error.value)


@pytest.mark.parametrize("prompt", [(10,), (-1,), (1, 2, 10**9)])
def test_a_token_outside_the_vocabulary_is_named(prompt: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=f"token {len(prompt) - 1} is {prompt[-1]}, the vocabulary has 0 to 9"):
        check(prompt)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="prompt is empty"):
        check(())


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    with pytest.raises(RequestError, match="has 20 tokens, at most 19 fit max_seq_len 20"):
        check((1,) * 20)


def test_a_prompt_the_whole_cache_cannot_hold_is_refused() -> None:
    check((1,) * 15)
    with pytest.raises(RequestError, match="has 16 tokens and the whole KV cache holds 16"):
        check((1,) * 16)


def test_stop_strings_need_a_tokenizer_and_text() -> None:
    with pytest.raises(RequestError, match="need a tokenizer"):
        check(stop=("x",))
    with pytest.raises(RequestError, match="empty"):
        check(stop=("",))


def test_values_at_the_edge_of_their_range_are_taken() -> None:
    check(max_tokens=1, temperature=0.0, top_p=1.0, top_k=0, min_p=1.0, repetition_penalty=0.01, seed=-(2**63), logprobs=20)
