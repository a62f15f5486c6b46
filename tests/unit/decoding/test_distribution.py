"""The distribution a token is drawn from: against Hugging Face's processors, and against the rules written out plainly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from builder.decoding import filters
from builder.decoding.params import SamplingParams
from builder.decoding.sampling import distribution, greedy_ids, sample, token_logprobs
from builder.errors import EngineError


def huggingface(logits: torch.Tensor, params: SamplingParams, history: list[int]) -> torch.Tensor:
    ids = torch.tensor([history])
    processors = [hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty), hf.TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        processors.append(hf.TopKLogitsWarper(params.top_k))
    processors += [hf.TopPLogitsWarper(params.top_p), hf.MinPLogitsWarper(params.min_p)]
    for processor in processors:
        logits = processor(ids, logits)
    return logits.softmax(-1)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.1, 3.0),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.5),
    penalty=st.floats(0.5, 2.0),
)
def test_the_distribution_is_hugging_faces(seed: int, temperature: float, top_k: int, top_p: float, min_p: float, penalty: float) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(1, 33)) * 3)
    history = [1, 5, 5, 32]
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    p = distribution(logits, params, history)
    torch.testing.assert_close(p, huggingface(logits, params, history), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spread", [0.05, 1.0, 6.0])  # a flat row needs the full sort, a peaked one a few entries
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999])
def test_the_fast_nucleus_equals_the_plain_rule_on_a_full_vocabulary(spread: float, top_p: float) -> None:
    torch.set_num_threads(1)
    p = (torch.randn(2, 49152, generator=torch.Generator().manual_seed(3)) * spread).softmax(-1)
    for row, kept in zip(p.double(), filters.keep_top_p(p, top_p), strict=True):
        above = torch.zeros_like(row)
        values, order = row.sort(descending=True, stable=True)
        above[order] = values.cumsum(0) - values
        plain = above < top_p * row.sum()
        assert torch.equal(kept > 0, plain)


def test_the_fast_nucleus_gives_the_same_row_when_the_batch_makes_it_sort() -> None:
    peaked, flat = torch.randn(1, 5000) * 8, torch.zeros(1, 5000)
    alone = filters.keep_top_p(peaked.softmax(-1), 0.9)
    beside = filters.keep_top_p(torch.cat([peaked, flat]).softmax(-1), 0.9)
    assert torch.equal(alone[0], beside[0])


def test_ties_at_the_edge_of_a_filter_stay_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    assert distribution(logits, SamplingParams(temperature=1.0, top_k=2))[0].gt(0).tolist() == [True, True, True, False]
    assert distribution(logits, SamplingParams(temperature=1.0, top_p=0.65))[0].gt(0).tolist() == [True, True, True, False]


def test_the_penalty_sees_the_tokens_drafted_before_each_row() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 3.0]]).repeat(3, 1)
    penalised = filters.penalise(logits, 2.0, [0, 0], drafted=[1, 0])
    assert penalised.tolist() == [[1.0, -2.0, 1.0, 3.0], [1.0, -4.0, 1.0, 3.0], [1.0, -4.0, 1.0, 3.0]]
    assert logits[0, 0] == 2.0  # the engine's logits are left as they were


def test_greedy_takes_the_lowest_of_tied_ids_and_makes_no_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "softmax", lambda *_: pytest.fail("a softmax was made"))
    logits = torch.zeros(2, 49152)
    logits[0, [700, 9]] = 5.0
    assert greedy_ids(logits) == [9, 0]
    assert distribution(logits, SamplingParams())[0].nonzero().tolist() == [[9]]


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-6, 1e30])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    p = distribution(torch.tensor([[1e4, 9e3, -1e4]]), SamplingParams(temperature=temperature))[0]
    assert torch.isfinite(p).all()
    assert math.isclose(float(p.sum()), 1.0, rel_tol=1e-6)


def test_a_uniform_number_picks_the_slice_of_the_cdf_it_lies_in() -> None:
    p = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64)
    assert [sample(p, u) for u in (0.0, 0.2499, 0.25, 0.999999, 1 - 2**-53)] == [1, 1, 3, 3, 3]


@given(st.lists(st.sampled_from([0.0, 1e-9, 0.1, 1.0]), min_size=1, max_size=9).filter(any), st.floats(0, 1, exclude_max=True))
def test_a_token_without_probability_is_never_sampled(p: list[float], u: float) -> None:
    assert p[sample(torch.tensor(p), u)] > 0


def test_logits_that_are_not_finite_are_an_engine_error() -> None:
    with pytest.raises(EngineError, match="not finite"):
        sample(distribution(torch.tensor([[1.0, torch.nan]]), SamplingParams(temperature=1.0))[0], 0.5)


def test_logprobs_are_the_models_own_best_first_with_the_emitted_token_added() -> None:
    report = token_logprobs(torch.tensor([0.0, 2.0, 1.0]), token=0, alternatives=2)
    total = math.log(1 + math.e + math.e**2)
    assert list(report) == [1, 2, 0]
    assert report == pytest.approx({1: 2 - total, 2: 1 - total, 0: -total})
    assert list(token_logprobs(torch.tensor([0.0, 2.0]), token=1, alternatives=0)) == [1]
