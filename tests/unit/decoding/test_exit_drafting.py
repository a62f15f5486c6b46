"""The rounds that drafts by an exit would take, played over judged answers."""

from __future__ import annotations

import numpy as np
import pytest

from builder.decoding.exits.costs import Costs, time_a_token
from builder.decoding.exits.drafting import best, play
from builder.decoding.exits.rule import FULL, Answers

COSTS = Costs(layers=0.6, head=0.01)


def answers(confidence: list[float], right: list[int], lengths: tuple[int, ...]) -> Answers:
    return Answers(np.array(confidence)[:, None], np.array(right, dtype=bool)[:, None], lengths)


def test_rounds_draft_while_sure_and_win_what_is_right() -> None:
    #  round 1: drafts 0 and 1, both kept, 2 is verified.  round 2: drafts 3, 4, 5; 4 is wrong, so 3 is kept and 4 is verified.
    #  round 3: drafts 5 and is kept; the answer ends there, with a look at 6 that belongs to the next one.
    judged = answers([0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.1], [1, 1, 0, 1, 0, 1, 0], (6, 1))
    found = play(judged, 0, 0.5, COSTS, most=4)
    assert (found.drafted, found.kept) == (6, 4)
    assert found.speedup == pytest.approx(7 / (3 + 6 * 0.6 + (3 + 4 + 2) * 0.01))


def test_a_round_proposes_no_more_than_it_may() -> None:
    found = play(answers([0.9] * 6, [1] * 6, (6,)), 0, 0.5, COSTS, most=2)
    assert (found.drafted, found.kept) == (4, 4)
    assert found.speedup == pytest.approx(6 / (2 + 4 * 0.6 + 4 * 0.01))


def test_an_exit_that_is_never_sure_costs_its_looks() -> None:
    assert play(answers([0.1] * 5, [0] * 5, (5,)), 0, 0.5, COSTS).speedup == pytest.approx(1 / 1.01)


def test_the_best_threshold_leaves_out_what_is_kept_too_rarely() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(size=4000)
    judged = answers(confidence.tolist(), (generator.uniform(size=4000) < confidence).astype(int).tolist(), (40,) * 100)
    found = best(judged, 0, COSTS)
    assert 0.55 <= found.threshold <= 0.75  # a chance of 0.6 pays for a step through 0.6 of the weights
    assert found.speedup > max(play(judged, 0, 0.2, COSTS).speedup, play(judged, 0, 0.95, COSTS).speedup)


def test_a_token_pays_for_the_looks_up_to_where_it_leaves() -> None:
    costs = [Costs(0.4, 0.02), Costs(0.7, 0.02)]
    chosen = np.array([0, 1, FULL, FULL])
    assert time_a_token(chosen, np.array([True] * 4), [True, True], costs) == pytest.approx((0.42 + 0.74 + 2 * 1.04) / 4)
    assert time_a_token(chosen, np.array([True] * 3 + [False]), [True, True], costs) == pytest.approx((0.42 + 0.74 + 1.04 + 1) / 4)
    assert time_a_token(np.array([1, FULL]), np.array([True, True]), [False, True], costs) == pytest.approx((0.72 + 1.02) / 2)
