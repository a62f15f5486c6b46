"""Proposers: what each proposes, for whom, and in how many passes of the draft model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builder.decoding import proposers
from builder.decoding.params import SamplingParams
from builder.decoding.proposers import Context
from builder.decoding.proposers.ngram import lookup
from builder.decoding.random import Purpose, uniforms
from builder.decoding.sampling import distribution, sample
from builder.errors import EngineError


class CountingModel:
    """Says last token + 1, or + 2 as second best; keeps the batch of each pass. `stale` contexts are never up to date."""

    def __init__(self, vocab: int = 20, stale: tuple[int, ...] = ()) -> None:
        self.vocab, self.stale = vocab, stale
        self.batches: list[list[int]] = []

    def _logits(self, last: Sequence[int]) -> torch.Tensor:
        first, second = (torch.nn.functional.one_hot((torch.tensor(last) + step) % self.vocab, self.vocab).double() for step in (1, 2))
        return 3.0 * first + 2.0 * second

    def greedy(self, contexts: Sequence[Context]) -> list[list[int]] | None:
        return None

    def begin(self, contexts: Sequence[Context]) -> tuple[list[Context], torch.Tensor]:
        ready = [context for context in contexts if context.index not in self.stale]
        self.batches.append([context.index for context in ready])
        return ready, self._logits([context.token_ids[-1] for context in ready]) if ready else torch.empty(0, self.vocab)

    def step(self, contexts: Sequence[Context], token_ids: Sequence[int], drafted: int) -> tuple[list[Context], torch.Tensor]:
        assert len(self.batches) == drafted
        self.batches.append([context.index for context in contexts])
        return list(contexts), self._logits(token_ids)


def context(index: int, token_ids: Sequence[int], limit: int, sampling: SamplingParams = SamplingParams()) -> Context:
    numbers = None if sampling.greedy else uniforms(index, len(token_ids), limit + 1)
    return Context(index, token_ids, limit, sampling, numbers)


def propose(name: str, contexts: list[Context], model: CountingModel | None = None) -> list[list[int]]:
    return [draft.token_ids for draft in proposers.entry(name).make().propose(contexts, model)]


def test_none_proposes_nothing() -> None:
    assert propose("none", [context(0, [1, 1, 1, 1], 4)]) == [[]]


@pytest.mark.parametrize(
    ("token_ids", "limit", "expected"),
    [
        ([1, 2, 3, 9, 8, 1, 2], 3, [3, 9, 8]),
        ([1, 2, 5, 1, 2, 6, 1, 2], 1, [6]),  # the most recent copy
        ([7, 8, 1, 2, 5, 0, 1, 2, 6, 3, 7, 8, 1, 2], 1, [5]),  # the longest copy beats a more recent, shorter one
        ([1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),  # a period goes on
        ([3, 3, 3], 2, [3, 3]),
        ([1, 2, 3, 4], 4, []),
        ([5, 1, 5], 4, []),  # one token is no evidence
        ([1, 2, 3, 1, 2], 0, []),
        ([1], 4, []),
        ([256, 1, 256 * 256, 0, 1, 256, 256], 2, []),  # the same bytes, but not at a token's boundary
    ],
)
def test_prompt_lookup_copies_what_followed(token_ids: list[int], limit: int, expected: list[int]) -> None:
    assert lookup(token_ids, limit) == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 6))
def test_prompt_lookup_equals_a_plain_search(token_ids: list[int], limit: int) -> None:
    def plain() -> list[int]:
        for length in (4, 3, 2):
            for start in range(len(token_ids) - length - 1, -1, -1):
                if token_ids[start : start + length] == token_ids[-length:]:
                    grown = list(token_ids)
                    for i in range(limit):
                        grown.append(grown[start + length + i])
                    return grown[len(token_ids) :]
        return []

    assert lookup(token_ids, limit) == plain()


def test_the_draft_model_steps_all_sequences_together_each_to_its_own_limit() -> None:
    model = CountingModel()
    drafts = propose("draft_model", [context(0, [3], 1), context(1, [5], 3), context(2, [7], 0)], model)
    assert drafts == [[4], [6, 7, 8], []]
    assert model.batches == [[0, 1], [1], [1]]


def test_a_sequence_the_draft_has_not_caught_up_with_gets_no_draft() -> None:
    assert propose("draft_model", [context(0, [3], 2), context(1, [5], 2)], CountingModel(stale=(0,))) == [[], [6, 7]]
    assert propose("draft_model", [context(0, [3], 2)], CountingModel(stale=(0,))) == [[]]


def test_nobody_wants_a_draft_so_no_pass_is_made() -> None:
    model = CountingModel()
    assert propose("draft_model", [context(0, [3], 0)], model) == [[]]
    assert model.batches == []


@pytest.mark.parametrize("index", range(8))
def test_sampled_drafts_come_from_q_and_carry_it(index: int) -> None:
    params = SamplingParams(temperature=3.0, repetition_penalty=1.5)
    asked = context(index, [1], 3, params)
    model = CountingModel(vocab=3)
    (draft,) = proposers.entry("draft_model").make().propose([asked], model)
    assert asked.uniforms is not None
    history = [1]
    for i, (token, q) in enumerate(zip(draft.token_ids, draft.q, strict=True)):
        expected = distribution(model._logits([history[-1]]), params, history)[0]  # what was drafted is history too
        assert torch.equal(q, expected)
        assert token == sample(expected, float(asked.uniforms[i, Purpose.DRAFT]))
        history.append(token)
    assert len(draft) == 3


def test_a_greedy_draft_obeys_the_repetition_penalty() -> None:
    assert propose("draft_model", [context(0, [2, 3, 1], 3)], CountingModel()) == [[2, 3, 4]]
    shy = SamplingParams(repetition_penalty=2.0)  # 2 was seen: 3.0 becomes 1.5, and the second best wins
    assert propose("draft_model", [context(0, [2, 1], 3, shy)], CountingModel()) == [[3, 4, 5]]


def test_hybrid_pays_for_the_draft_model_only_where_the_text_does_not_repeat() -> None:
    model = CountingModel()
    assert propose("hybrid", [context(0, [1, 2, 9, 1, 2], 2), context(1, [5], 2)], model) == [[9, 1], [6, 7]]
    assert model.batches == [[1], [1]]


def test_every_proposer_gives_one_draft_a_context_in_order() -> None:
    contexts = [context(i, [i, i + 1, i, i + 1], i % 3) for i in range(5)]
    for name, entry in proposers.ENTRIES.items():
        drafts = entry.make().propose(contexts, CountingModel())
        assert [len(draft) <= c.limit for draft, c in zip(drafts, contexts, strict=True)] == [True] * 5, name


def test_an_unknown_proposer_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(EngineError, match="Did you mean ngram"):
        proposers.entry("ngrams")


def test_the_draft_model_proposer_refuses_to_work_without_a_model() -> None:
    with pytest.raises(EngineError, match="needs a draft model"):
        propose("draft_model", [context(0, [1], 1)])


def test_numbers_are_only_drawn_for_sampled_requests() -> None:
    assert context(0, [1], 1).uniforms is None
    assert isinstance(context(0, [1], 1, SamplingParams(temperature=1.0)).uniforms, np.ndarray)
