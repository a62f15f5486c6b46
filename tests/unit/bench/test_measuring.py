"""Measuring on toy runners: what is counted is right; no test looks at a time that was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.bench import speculation
from builder.bench.calibration import Costs, acceptance, calibrate, formula_speedup, median_costs, predicted_speedup
from builder.bench.identity import Identity, check_batches
from builder.bench.lab import PLAIN, Lab, Setting
from builder.bench.peers import Speeds, compare
from builder.bench.prompts import kinds, select, shipped
from builder.bench.spread import Spread
from builder.bench.steps import SHORTEST, Answer, Step
from builder.errors import SpecError
from builder.plan.cost import StepTimes
from tests.unit.bench.conftest import COSTS, answer, make_lab, rounds, sample

WORKED = Costs(4, StepTimes(plain=0.030, draft=0.0015, verify=0.035), plain_overhead=0.0, round_overhead=0.0)


def test_eight_prompts_of_each_class_are_shipped_and_no_two_are_alike() -> None:
    assert kinds() == ("facts", "code", "rewrite")
    assert [len(select([kind])) for kind in kinds()] == [8, 8, 8]
    assert len({prompt.name for prompt in shipped()}) == len({prompt.text for prompt in shipped()}) == 24


def test_an_unknown_class_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SpecError, match="Did you mean rewrite"):
        select(["rewrites"])


@pytest.mark.parametrize("method", ["draft_model", "ngram", "hybrid"])
def test_the_steps_of_an_answer_add_up_to_it(lab: Lab, method: str) -> None:
    made = lab.answer(Setting(3, method), [1, 2, 3, 1, 2, 3], 40)
    assert len(made.token_ids) == 40
    assert 1 + sum(step.tokens for step in made.steps) == 40
    assert all(step.tokens == step.accepted + 1 and step.drafted <= 3 for step in made.steps)
    if method == "draft_model":
        assert all(step.draft_passes == step.drafted for step in made.steps)
    if method == "ngram":
        assert not any(step.draft_passes for step in made.steps)


def test_the_time_of_a_step_holds_its_passes(lab: Lab) -> None:
    made = lab.answer(Setting(3, "draft_model"), [1, 2, 3], 30)
    assert all(step.target_seconds > 0 and step.overhead > 0 for step in made.steps)


@pytest.mark.parametrize("setting", [PLAIN, Setting(3, "draft_model")], ids=["plain", "draft"])
def test_a_prompt_asked_again_is_prefilled_whole(lab: Lab, setting: Setting) -> None:
    for _ in range(2):
        lab.parts.target.passes.clear()  # type: ignore[attr-defined]
        lab.answer(setting, [1, 2, 3, 4, 5, 6, 7, 8, 9], 5)
        assert lab.parts.target.passes[0] == 9  # type: ignore[attr-defined]


def test_an_answer_is_timed_to_its_natural_end_but_not_less_than_the_shortest() -> None:
    steps = [Step(2, 1.0)] * 40
    assert len(Answer(tuple(range(81)), tuple(steps), 0.0, 61).timed_steps) == 30
    assert 1 + sum(step.tokens for step in Answer(tuple(range(81)), tuple(steps), 0.0, 5).timed_steps) in (SHORTEST, SHORTEST + 1)


def test_the_natural_end_is_the_first_token_that_ends_a_sequence() -> None:
    lab = make_lab(eos=frozenset({7}))
    assert lab.natural_length([1, 7, 7]) == 2
    assert lab.natural_length([1, 2]) == 2


def test_a_long_prompt_is_cut_to_leave_room_for_the_answer(lab: Lab) -> None:
    assert len(lab.fit(list(range(200)), 50)) == 70
    assert lab.fit([1, 2], 50) == [1, 2]


def test_the_worked_example_of_the_cost_model_comes_out() -> None:
    """M3: a = 0.80, K = 4, 30 ms, 1.5 ms, 35 ms: a round of 41 ms, 2.5 times."""
    steps = rounds(4, 4, 0, 0, 0, 4)  # 12 tokens kept, 3 refused
    assert acceptance(steps) == pytest.approx(0.80)
    assert WORKED.full_round == pytest.approx(0.041)
    assert formula_speedup(WORKED, steps) == pytest.approx(2.46, abs=0.005)


def test_a_prediction_from_the_true_costs_is_the_measured_speedup() -> None:
    steps = [Step(kept + 1, COSTS.step(4, 4), 4, kept, 4) for kept in (0, 4, 2, 3)] + [Step(1, COSTS.step(0, 0))]
    plain = answer([Step(1, COSTS.plain_step)] * 14)
    measured = answer(steps).tokens_per_second / plain.tokens_per_second
    assert predicted_speedup(COSTS, steps) == pytest.approx(measured)


def test_overhead_makes_a_round_dearer() -> None:
    steps = rounds(3, 3)
    free = Costs(4, COSTS.times, 0.0, 0.0)
    assert predicted_speedup(COSTS, steps) != pytest.approx(predicted_speedup(free, steps))
    assert COSTS.full_round - free.full_round == pytest.approx(0.001)


@given(st.lists(st.integers(0, 4), min_size=1), st.integers(4, 8))
def test_acceptance_is_a_chance_and_at_least_the_rate_of_kept_to_drafted(kept: list[int], k: int) -> None:
    chance = acceptance(rounds(*kept, k=k))
    assert sum(kept) / (k * len(kept)) <= chance <= 1.0


def test_a_calibration_has_all_terms_and_without_a_draft_no_draft_time(lab: Lab) -> None:
    costs = calibrate(lab, 3)
    assert costs.times.plain > 0 and costs.times.draft > 0 and costs.times.verify > 0 and costs.round_overhead > 0
    assert calibrate(make_lab(draft=False), 3).times.draft == 0.0


def test_median_costs_are_taken_term_by_term() -> None:
    slow = Costs(4, StepTimes(0.1, 0.2, 0.3), 0.4, 0.5)
    assert median_costs([COSTS, slow, COSTS]) == COSTS


def test_measuring_keeps_every_token_and_pairs_each_answer_with_a_plain_one(lab: Lab) -> None:
    samples = speculation.measure(lab, select(["facts"], 2), lab.methods, [3], 20)
    assert len(samples.speculative) == 2 * 3
    assert len(samples.plain) == 2
    assert samples.identity.fraction == 1.0
    assert samples.identity.compared == 2 * 4
    assert all(
        one.plain.token_ids == one.answer.token_ids and one.costs.draft_tokens == one.setting.draft_tokens for one in samples.speculative
    )


@pytest.mark.parametrize("method", ["draft_model", "ngram", "hybrid"])
def test_tokens_in_a_batch_are_those_alone(lab: Lab, method: str) -> None:
    prompts = {name: [place + 1, 2, 3, place] for place, name in enumerate("abcdefghij")}
    identity = Identity()
    for name, ids in prompts.items():
        identity.check(name, PLAIN, lab.answer(PLAIN, ids, 20).token_ids)
    check_batches(lab, Setting(3, method), prompts, 20, identity)
    assert (identity.compared, identity.identical) == (10 + 16, 26)  # the second batch is filled up to eight


def test_the_first_difference_is_kept_with_its_place() -> None:
    identity = Identity()
    identity.check("a", PLAIN, [1, 2, 3])
    identity.check("a", Setting(2, "ngram"), [1, 2, 3])
    identity.check("a", Setting(3, "ngram"), [1, 9, 3], among=8)
    identity.check("a", Setting(4, "ngram"), [1, 2])
    found = identity.to_json()
    assert found["fraction"] == 0.5
    assert found["first_difference"] == {"prompt": "a", "method": "ngram", "k": 3, "batch": 8, "position": 1}


def test_a_result_counts_rounds_and_positions() -> None:
    (result,) = speculation.results([sample()])
    assert result.acceptance_rate == pytest.approx(30 / 40)
    assert result.acceptance_length == pytest.approx(4.0)
    assert result.by_position == [1.0, 1.0, 1.0, 0.0]
    assert result.speedup.median == pytest.approx((4 / 0.02) / (1 / 0.0105))
    assert result.prediction_error == pytest.approx(result.predicted / result.speedup.median - 1)


def test_the_best_setting_is_that_of_facts_and_code() -> None:
    """A rewrite that copies at K = 4 must not decide."""
    samples = [sample("facts", k=2, seconds=0.010), sample("facts", k=4, seconds=0.020), sample("rewrite", k=4, seconds=0.001)]
    assert speculation.best_setting(samples) == Setting(2, "draft_model")
    assert speculation.best_setting(samples[2:]) == Setting(4, "draft_model")
    assert speculation.best_setting(samples, "ngram") is None


@given(st.lists(st.floats(0.1, 1e6), min_size=1))
def test_quartiles_enclose_the_median(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) <= spread.p25 <= spread.median <= spread.p75 <= max(values)


def test_a_plain_peer_is_compared_with_both_our_ways_and_a_failed_one_with_none() -> None:
    entries = [
        {"peer": "llama.cpp", "mode": "plain", "precision": "bf16", "tok_s": 80.0},
        {"peer": "llama.cpp", "mode": "ngram", "precision": "bf16", "tok_s": 60.0},
        {"peer": "openvino", "mode": "plain", "error": "not installed"},
    ]
    rows = [(row.mode, row.ours_mode, row.ours_over_peer) for row in compare(entries, Speeds(plain=96.0, speculative=180.0))]
    assert rows == [("plain", "plain", 1.2), ("plain", "speculative", 2.25), ("ngram", "speculative", 3.0)]
