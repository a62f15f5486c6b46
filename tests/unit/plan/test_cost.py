"""The cost model: the worked example of requirement M3, its limits, and a simulation of rounds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.plan.cost import StepTimes, best_draft_length, break_even, byte_bound_times, expected_tokens, predict, speed_up

WORKED = StepTimes(plain=30.0, draft=1.5, verify=35.0)  # milliseconds

acceptances = st.floats(0.0, 1.0)
lengths = st.integers(1, 16)
times = st.builds(StepTimes, plain=st.floats(1.0, 100.0), draft=st.floats(0.0, 50.0), verify=st.floats(1.0, 100.0))


def test_the_worked_example_of_m3_comes_out() -> None:
    made = predict(WORKED, acceptance=0.80, draft_tokens=4)
    assert made.tokens_per_round == pytest.approx(3.3616, abs=1e-4)
    assert made.round_time == pytest.approx(41.0)
    assert made.time_per_token == pytest.approx(12.2, abs=0.01)
    assert made.speed_up == pytest.approx(2.46, abs=0.005)


@given(acceptances.filter(lambda a: a < 0.999), lengths)
def test_expected_tokens_are_the_closed_form(acceptance: float, length: int) -> None:
    assert expected_tokens(acceptance, length) == pytest.approx((1 - acceptance ** (length + 1)) / (1 - acceptance))


@given(lengths)
def test_all_accepted_gives_the_bonus_token_and_none_accepted_gives_one(length: int) -> None:
    assert expected_tokens(1.0, length) == length + 1
    assert expected_tokens(0.0, length) == 1.0


def test_expected_tokens_match_simulated_rounds() -> None:
    draw = random.Random(7)
    rounds = 20_000
    emitted = 0
    for _ in range(rounds):
        accepted = next((i for i in range(4) if draw.random() >= 0.7), 4)
        emitted += accepted + 1  # the resampled or bonus token
    assert emitted / rounds == pytest.approx(expected_tokens(0.7, 4), abs=0.05)


@given(times, lengths)
def test_at_the_break_even_acceptance_speculation_costs_what_plain_decoding_costs(steps: StepTimes, length: int) -> None:
    point = break_even(steps, length)
    if point is None:
        assert speed_up(steps, 1.0, length) < 1.0
    elif point == 0.0:
        assert speed_up(steps, 0.0, length) >= 1.0
    else:
        assert speed_up(steps, point, length) == pytest.approx(1.0)
        assert speed_up(steps, point / 2, length) < 1.0


@given(times, acceptances, lengths)
def test_the_best_length_is_at_least_as_fast_as_any_other(steps: StepTimes, acceptance: float, longest: int) -> None:
    best = best_draft_length(lambda _: steps, acceptance, longest)
    assert all(speed_up(steps, acceptance, best) >= speed_up(steps, acceptance, k) for k in range(longest + 1))


def test_plain_decoding_is_best_when_nothing_is_accepted() -> None:
    assert best_draft_length(lambda _: WORKED, 0.0, 8) == 0
    assert speed_up(WORKED, 0.0, 0) == 1.0


def test_of_equally_fast_lengths_the_shortest_is_best() -> None:
    assert best_draft_length(lambda _: StepTimes(plain=30.0, draft=0.0, verify=30.0), 0.0, 8) == 0


def test_a_verify_pass_that_grows_with_its_rows_shortens_the_best_draft() -> None:
    flat = best_draft_length(lambda _: WORKED, 0.8, 16)
    growing = best_draft_length(lambda k: StepTimes(30.0, 1.5, 30.0 + 5.0 * k), 0.8, 16)
    assert 0 < growing < flat


def test_byte_bound_times_are_in_units_of_a_plain_step() -> None:
    assert byte_bound_times(400, 100) == StepTimes(plain=1.0, draft=0.25, verify=1.0)


@pytest.mark.parametrize(("acceptance", "length"), [(-0.1, 4), (1.1, 4), (0.5, -1), (float("nan"), 4)])
def test_an_impossible_acceptance_or_length_is_refused(acceptance: float, length: int) -> None:
    with pytest.raises(ValueError, match="acceptance"):
        expected_tokens(acceptance, length)


@pytest.mark.parametrize("values", [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 0.0)])
def test_step_times_that_cannot_be_are_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        StepTimes(*values)
