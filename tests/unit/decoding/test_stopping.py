"""Drafts that end early: the rule, what it learns from, and that it wins where confidence tells something."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from builder.decoding import proposers
from builder.decoding.control import ControlSettings, Governor, Member, SamplingClass
from builder.decoding.control.confidence import ConfidenceCounts
from builder.decoding.control.early_stop import EarlyStop, least_chance
from builder.decoding.control.round_cost import Share
from builder.decoding.params import SamplingParams
from builder.decoding.proposers import Context
from builder.decoding.random import Purpose, uniforms
from builder.decoding.sampling import distribution, sample
from builder.decoding.stopping import BINS, StopRule, bin_of
from tests.unit.decoding.test_proposers import CountingModel

GREEDY = Member(SamplingClass.GREEDY, "other")
AS_THEY_SAY = tuple((place + 0.5) / BINS for place in range(BINS))


def test_a_draft_goes_on_while_all_of_it_is_likely_enough_to_be_kept() -> None:
    rule = StopRule(AS_THEY_SAY, 0.5)
    assert [rule.ends(sure) for sure in ([], [1.0], [0.8, 0.7], [0.8, 0.7, 0.7], [0.3])] == [False, False, False, True, True]


@pytest.mark.parametrize("confidence", [0.0, 0.03, 0.5, 0.999, 1.0])
def test_every_probability_has_a_bin(confidence: float) -> None:
    assert bin_of(confidence) / BINS <= confidence <= (bin_of(confidence) + 1) / BINS


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(repetition_penalty=1.5)])
def test_the_token_that_was_drawn_stays_and_is_the_last(params: SamplingParams) -> None:
    """CountingModel is 0.41 to 0.85 sure, by sampling: never enough for a rule that wants 0.9."""
    numbers = None if params.greedy else uniforms(3, 1, 5)
    asked = Context(0, [1], 4, params, numbers, StopRule(AS_THEY_SAY, 0.9))
    (draft,) = proposers.entry("draft_model").make().propose([asked], model := CountingModel())
    assert len(draft) == len(draft.confidences) == len(model.batches) == 1
    if numbers is not None:
        q = distribution(model._logits([1]), params)[0]
        assert draft.token_ids == [sample(q, float(numbers[0, Purpose.DRAFT]))]
        assert draft.confidences == [pytest.approx(float(q.max()))]


def test_without_a_rule_drafts_are_whole_and_nobody_asks_how_sure_they_are() -> None:
    (draft,) = proposers.entry("draft_model").make().propose([Context(0, [1], 4, SamplingParams())], CountingModel())
    assert (len(draft), draft.confidences) == (4, [])


def test_the_worth_of_a_confidence_is_learnt_from_what_is_kept() -> None:
    counts = ConfidenceCounts()
    for number in range(200):
        counts.add((0.9, 0.2, 0.2), (0, 1, 2, 2)[number % 4])  # 0.2: judged five times in four rounds, kept twice
    chances = counts.chances()
    assert chances[bin_of(0.9)] == pytest.approx(0.75, abs=0.05)
    assert chances[bin_of(0.2)] == pytest.approx(0.4, abs=0.04)
    assert chances[bin_of(0.5)] == pytest.approx(0.53, abs=0.01)  # never seen: worth what it says


def test_a_token_must_be_worth_its_step_and_its_row() -> None:
    """M3's example: 12.2 ms a token, 1.5 ms a draft step, 1.25 ms a row: kept less often than 0.225, a token is not worth it."""

    class Worked:
        def seconds(self, kind: str, rows: int) -> float:
            return 0.030 + 0.00125 * (rows - 1)

        def draft_seconds(self, sequences: int, steps: int) -> float:
            return 0.0015 * steps

    share = Share(1, 4, tuple(0.8**kept for kept in range(1, 5)))
    assert least_chance((share,), 0, Worked()) == pytest.approx((0.0015 + 0.00125) / 0.0122, rel=0.01)
    assert least_chance((Share(1, 0, ()),), 0, Worked()) is None  # nobody drafts


def governor_with(**settings: object) -> Governor:
    class FixedCosts:
        def seconds(self, kind: str, rows: int) -> float:
            return 0.010 + 0.0003 * rows

        def draft_seconds(self, sequences: int, steps: int) -> float:
            return 0.0022 * steps

    return Governor(ControlSettings(**settings), FixedCosts())  # type: ignore[arg-type]


def test_nothing_ends_early_unless_wished_and_while_the_length_is_fixed() -> None:
    for settings in ({}, {"early_stop": True, "adaptive": False}):
        governor = governor_with(**settings)
        governor.lengths(0.0, [GREEDY], 0)
        assert governor.stop_rule(GREEDY) is None
    governor = governor_with(early_stop=True)
    governor.lengths(0.0, [GREEDY], 0)
    assert governor.stop_rule(GREEDY) is not None


def speed(limit: Callable[[], tuple[int, StopRule | None]], learn: Callable[..., None], rounds: int = 4000) -> float:
    """Tokens per second where half of the tokens are sure and always kept, and the others are neither."""
    dice = random.Random(0)
    tokens = seconds = 0.0
    for _ in range(rounds):
        most, rule = limit()
        sure: list[float] = []
        while len(sure) < most and not (rule and rule.ends(sure)):
            sure.append(dice.choice((0.98, 0.3)))
        accepted = 0
        while accepted < len(sure) and dice.random() < (0.99 if sure[accepted] > 0.5 else 0.4):
            accepted += 1
        learn(GREEDY, most, len(sure), accepted, sure if rule else ())
        tokens += 1 + accepted
        seconds += 0.0022 * len(sure) + 0.010 + 0.0003 * (1 + len(sure))
    return tokens / seconds


def test_ending_early_beats_the_best_fixed_length() -> None:
    governor = governor_with(early_stop=True, max_draft_tokens=8)

    def controlled() -> tuple[int, StopRule | None]:
        (length,) = governor.lengths(0.0, [GREEDY], 0)
        return length, governor.stop_rule(GREEDY) if length else None

    def learn(member: Member, offered: int, *found: object) -> None:
        if offered:
            governor.round_done(member, offered, *found)  # type: ignore[arg-type]

    best = max(speed(lambda k=k: (k, None), lambda *_: None) for k in range(9))  # type: ignore[misc]
    assert speed(controlled, learn) > 1.05 * best


def test_a_class_that_falls_back_forgets_what_confidence_was_worth() -> None:
    class Costs:
        def seconds(self, kind: str, rows: int) -> float:
            return 0.010 + 0.0003 * rows

        def draft_seconds(self, sequences: int, steps: int) -> float:
            return 0.0022 * steps

    early, share = EarlyStop(Costs()), [Share(1, 4, (0.8, 0.6, 0.4, 0.3))]
    early.decide({SamplingClass.GREEDY: True}, share, 0)
    fresh = early.rules[SamplingClass.GREEDY]
    for _ in range(50):
        early.judged(SamplingClass.GREEDY, (0.9,), 0)
    early.decide({SamplingClass.GREEDY: True}, share, 0)
    assert early.rules[SamplingClass.GREEDY].chances[bin_of(0.9)] < 0.2
    early.decide({SamplingClass.GREEDY: False}, share, 0)
    assert early.rules == {}
    early.decide({SamplingClass.GREEDY: True}, share, 0)
    assert early.rules[SamplingClass.GREEDY] == fresh
