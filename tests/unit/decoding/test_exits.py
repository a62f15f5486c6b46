"""Thresholds of early exit keep their bound as often as they say; confidence, separation and the rule are what they are called."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from builder.decoding.exits.confidence import MEASURES
from builder.decoding.exits.learn_then_test import candidates, choose, fixed_sequence
from builder.decoding.exits.risk import betting
from builder.decoding.exits.rule import FULL, Answers, ExitLimits, asked, exits, losses
from builder.decoding.exits.separation import auroc, reliability

LEVEL, CONFIDENCE, TOKENS, TRIALS = 0.042, 0.9, 30, 200
LIMITS = ExitLimits(max_pending=4, protected_tokens=5)


def made(answers: int, seed: int) -> Answers:
    """Two layers whose confidence says how often they are right; some answers are harder than others, so their tokens err together."""
    random = np.random.default_rng(seed)
    hard = np.repeat(random.normal(0.0, 0.7, answers), TOKENS)[:, None]
    logit = random.normal([0.5, 1.5], 1.5, (answers * TOKENS, 2)) - hard
    confidence = 1 / (1 + np.exp(-logit))
    right = random.random(confidence.shape) < 1 / (1 + np.exp(-1.5 * logit))
    return Answers(confidence, right, (TOKENS,) * answers)


def risk(answers: Answers, thresholds: np.ndarray) -> float:
    return float(losses(answers, exits(answers, thresholds, LIMITS)).mean())


def test_over_200_calibrations_the_bound_fails_no_more_often_than_stated_and_the_empirical_risk_alone_does() -> None:
    thresholds = candidates(made(300, seed=1))[::8]
    everybody = made(20_000, seed=2)
    true_risk = {tuple(row): risk(everybody, row) for row in thresholds}
    broken = broken_without_test = shares = 0.0
    for trial in range(TRIALS):
        tested = made(200, seed=100 + trial)
        choice = choose(tested, thresholds, LEVEL, CONFIDENCE, LIMITS, TOKENS)
        assert choice is not None
        broken += true_risk[choice.thresholds] > LEVEL
        shares += choice.share / TRIALS
        safe_by_chance = [row for row in thresholds if risk(tested, row) <= LEVEL]
        broken_without_test += true_risk[tuple(safe_by_chance[-1])] > LEVEL
    allowed = stats.binom.ppf(0.999, TRIALS, 1 - CONFIDENCE)
    assert broken <= allowed < broken_without_test
    assert shares > 0.1  # a rule that lets nothing leave would keep any bound


def test_no_threshold_is_chosen_where_no_confidence_means_anything() -> None:
    random = np.random.default_rng(0)
    answers = Answers(random.random((6000, 1)), random.random((6000, 1)) < 0.5, (TOKENS,) * 200)
    assert choose(answers, np.array([[0.9], [0.5]]), LEVEL, CONFIDENCE, LIMITS, TOKENS) is None
    assert choose(answers, np.zeros((0, 1)), LEVEL, CONFIDENCE, LIMITS, TOKENS) is None


def test_p_values_of_a_true_hypothesis_are_no_smaller_than_chance_allows() -> None:
    random = np.random.default_rng(3)
    at_the_level = random.binomial(10, 0.1, (300, 2000)) / 10
    p_values = betting(at_the_level, 0.1)
    for level in (0.01, 0.05, 0.2):
        assert (p_values <= level).sum() <= stats.binom.ppf(0.9999, 2000, level)


def test_p_values_shrink_with_observations_below_the_level_and_with_a_smaller_largest_loss() -> None:
    small = np.full((400, 1), 0.01)
    assert betting(small, 0.05)[0] < betting(small[:100], 0.05)[0] < 1.0
    assert betting(small, 0.05, most=0.5)[0] < betting(small, 0.05)[0]
    assert betting(np.full((400, 1), 0.05), 0.05)[0] == 1.0


def test_the_walk_ends_at_the_first_test_that_fails() -> None:
    assert fixed_sequence(np.array([0.01, 0.04, 0.2, 0.01]), 0.05) == 2
    assert fixed_sequence(np.array([0.01]), 0.05) == 1
    assert fixed_sequence(np.array([0.2, 0.01]), 0.05) == 0


def test_candidates_run_from_strict_to_loose_in_every_layer() -> None:
    found = candidates(made(300, seed=4))
    assert len(found) > 10
    assert (np.diff(np.where(np.isinf(found), 2.0, found), axis=0) <= 0).all()


def test_a_token_leaves_at_the_first_layer_sure_enough_but_never_the_first_of_an_answer_nor_beyond_what_may_be_pending() -> None:
    sure = np.array([[1, 1], [1, 0], [0, 1], [1, 1], [1, 1], [0, 0], [0, 1], [1, 1], [0, 1]], dtype=float)
    answers = Answers(sure, sure > 0, (7, 2))
    assert exits(answers, np.array([0.5, 0.5]), ExitLimits(2)).tolist() == [FULL, 0, 1, FULL, 0, FULL, 1, FULL, 1]
    assert exits(answers, np.array([np.inf, 0.5]), ExitLimits(9)).tolist() == [FULL, FULL, 1, 1, 1, FULL, 1, FULL, 1]
    assert exits(answers, np.array([0.5, 0.5]), ExitLimits(2, protected_tokens=4)).tolist() == [FULL] * 4 + [0, FULL, 1, FULL, FULL]


def test_only_tokens_that_may_leave_are_looked_at() -> None:
    chosen = np.array([FULL, 0, 1, FULL, 0, FULL, 1, FULL, 1])
    assert asked(chosen, (7, 2), ExitLimits(2)).tolist() == [False, True, True, False, True, True, True, False, True]
    assert asked(chosen, (7, 2), ExitLimits(9, protected_tokens=2)).tolist() == [False, False, *[True] * 5, False, False]


@pytest.mark.parametrize("limits", [ExitLimits(4), ExitLimits(1), ExitLimits(4, protected_tokens=16), ExitLimits(3, protected_tokens=50)])
def test_no_answer_lets_a_larger_share_leave_than_the_limits_do(limits: ExitLimits) -> None:
    def share(length: int) -> float:
        certain = Answers(np.ones((length, 1)), np.ones((length, 1), dtype=bool), (length,))
        return float((exits(certain, np.array([0.5]), limits) != FULL).mean())

    for longest in (3, 30, 96):
        assert limits.largest_share(longest) == pytest.approx(max(share(length) for length in range(1, longest + 1)))
    assert ExitLimits(4).largest_share(96) == 0.8 and ExitLimits(4, protected_tokens=16).largest_share(96) == pytest.approx(64 / 95)


def test_a_loss_is_the_share_of_an_answer_that_left_and_differs() -> None:
    right = np.array([[False], [False], [True], [False], [True], [False]])
    answers = Answers(np.ones((6, 1)), right, (4, 2))
    assert losses(answers, np.array([FULL, 0, 0, FULL, FULL, 0])).tolist() == [0.25, 0.5]


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_is_one_for_certainty_and_grows_with_it(name: str) -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [99.0, 0.0, 0.0]])
    unsure, surer, certain = MEASURES[name](logits).tolist()
    assert 0.0 - 1e-6 <= unsure < surer < certain == pytest.approx(1.0)


def test_measures_are_those_of_their_names() -> None:
    logits = torch.tensor([[math.log(6), math.log(3), math.log(1)]])
    entropy = -(0.6 * math.log(0.6) + 0.3 * math.log(0.3) + 0.1 * math.log(0.1))
    expected = {"probability": 0.6, "margin": 0.3, "entropy": 1 - entropy / math.log(3)}
    assert {name: float(measure(logits)) for name, measure in MEASURES.items()} == pytest.approx(expected)


def test_auroc_is_the_chance_that_a_right_row_is_surer() -> None:
    confidence, right = np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, True, False, True])
    assert auroc(confidence, right) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert auroc(confidence, np.array([True] * 4)) == 0.5


def test_reliability_has_equal_bins_in_ascending_confidence() -> None:
    confidence = np.array([0.9, 0.1, 0.2, 0.8])
    low, high = reliability(confidence, np.array([True, False, True, True]), bins=2)
    assert (low.confidence, low.right, low.rows) == (pytest.approx(0.15), 0.5, 2)
    assert (high.confidence, high.right, high.rows) == (pytest.approx(0.85), 1.0, 2)
    assert len(reliability(confidence[:1], np.array([True]), bins=10)) == 1
