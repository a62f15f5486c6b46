"""Which layers tokens leave at, and what is told of them, on scores whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from builder.decoding.exits.confidence import MEASURES
from builder.decoding.exits.costs import Costs
from builder.exits.guarantee import Bound, calibrate
from builder.exits.passages import SHARES, Part
from builder.exits.scores import Scores

ANSWERS, TOKENS, LAYERS, DEPTH = 600, 30, (2, 3), 4
COSTS = (Costs(0.5, 0.05), Costs(0.75, 0.01))  # a look at the first exit costs five times as much


@pytest.fixture(scope="module")
def scores() -> Scores:
    """One token in thirty is sure at the first exit, half of them are at the second; the sure ones are right."""
    random = np.random.default_rng(0)
    confidence = random.random((len(LAYERS), ANSWERS * TOKENS)).astype(np.float32)
    sure = confidence > np.array([[0.97], [0.5]])
    right = torch.from_numpy(sure | (random.random(sure.shape) < 0.3))
    shares = np.array(SHARES[1:]) / sum(SHARES[1:])
    parts = np.repeat([Part.CHOOSE, Part.TEST, Part.HELD_OUT], (shares * ANSWERS).round().astype(int))
    lengths = torch.full((ANSWERS,), TOKENS, dtype=torch.int32)
    return Scores(torch.from_numpy(np.stack([confidence] * len(MEASURES))), right, right, lengths, torch.from_numpy(parts))


def bound(protected_tokens: int) -> Bound:
    return Bound(max_disagreement=0.05, confidence=0.9, max_pending=4, protected_tokens=protected_tokens)


def test_a_layer_that_costs_more_than_it_saves_is_dropped_unless_all_are_asked_for(scores: Scores) -> None:
    chosen = calibrate(scores, LAYERS, DEPTH, bound(1), COSTS, keep_all=False)
    kept = calibrate(scores, LAYERS, DEPTH, bound(1), COSTS, keep_all=True)
    assert [threshold is not None for threshold in chosen.thresholds] == [False, True]
    assert all(threshold is not None for threshold in kept.thresholds)
    assert kept.held_out.average_layers < chosen.held_out.average_layers
    assert kept.held_out.predicted_speedup < chosen.held_out.predicted_speedup


def test_what_is_told_is_of_answers_whose_first_tokens_run_in_full(scores: Scores) -> None:
    free, held = (calibrate(scores, LAYERS, DEPTH, bound(tokens), COSTS, keep_all=True).held_out for tokens in (1, 16))
    assert sum(held.shares) <= 12 / TOKENS < sum(free.shares)  # of fourteen tokens, every fifth runs in full too
    assert held.disagreement <= 0.05 and free.disagreement <= 0.05
