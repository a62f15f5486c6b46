"""The control of draft lengths on a simulated machine: never far from the best fixed K, never far below plain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.decoding.control import ControlSettings, Governor, Member, Reason, SamplingClass, State, sampling_class
from builder.decoding.control.acceptance_window import AcceptanceWindow
from builder.decoding.control.round_cost import Share, seconds_per_token
from builder.decoding.params import SamplingParams
from builder.plan.cost import expected_tokens
from tests.unit.decoding.control_simulation import Acceptance, Machine, best_fixed, simulate

GREEDY = Member(SamplingClass.GREEDY, "other")


def changing(*acceptances: float, every: float = 30.0) -> Acceptance:
    return lambda now, _member: acceptances[int(now // every) % len(acceptances)]


class FixedCosts:
    """10 ms a target pass, 3 ms a draft step, whatever the rows."""

    def seconds(self, kind: str, rows: int) -> float:
        return 0.010

    def draft_seconds(self, sequences: int, steps: int) -> float:
        return 0.003 * steps


@pytest.mark.parametrize("acceptances", [(0.85, 0.1), (0.9, 0.5, 0.0, 0.7), (0.8, 0.45)])
def test_traffic_that_changes_every_30_s_gets_0_95_of_the_best_fixed_k(acceptances: tuple[float, ...]) -> None:
    traffic = changing(*acceptances)
    run = simulate(traffic, 180)
    assert run.speed >= 0.95 * best_fixed(traffic, 180)
    assert run.probing < 0.02 * run.seconds


@pytest.mark.parametrize("acceptance", [0.0, 0.1])
def test_a_useless_draft_costs_3_percent_at_most_and_is_left_within_3_s(acceptance: float) -> None:
    run = simulate(changing(acceptance), 60)
    plain = simulate(changing(acceptance), 60, fixed=0)
    assert run.speed >= 0.97 * plain.speed
    first = run.transitions[0]
    assert (first.new, first.reason) == (State.PLAIN, Reason.LOW_ACCEPTANCE)
    assert first.at < 3.0


@pytest.mark.parametrize("row", [0.03, 0.05, 0.08])
@pytest.mark.parametrize("sequences", [1, 2, 4, 8, 16, 32])
def test_no_batch_is_slower_than_plain_where_rows_cost(sequences: int, row: float) -> None:
    options = {"machine": Machine(row=row), "batch": lambda _: sequences}
    run = simulate(changing(0.7), 20, **options)
    assert run.speed >= 0.97 * simulate(changing(0.7), 20, fixed=0, **options).speed


def test_a_grown_batch_ends_speculation_for_load_and_a_shrunk_one_brings_it_back() -> None:
    run = simulate(changing(0.8), 30, machine=Machine(row=0.08, hiccups=0.0), batch=lambda now: 32 if 10 <= now < 20 else 1)
    left = next(found for found in run.transitions if found.new is State.PLAIN)
    assert 10 <= left.at < 13
    assert left.reason is Reason.LOAD
    back = next(found for found in run.transitions if found.at >= 20 and found.new is State.SPECULATING)
    assert back.at < 22


def test_acceptance_that_returns_is_noticed_by_a_probe() -> None:
    run = simulate(changing(0.0, 0.85), 60)
    back = next(found for found in run.transitions if found.new is State.SPECULATING)
    assert 30 <= back.at < 42
    assert back.reason is Reason.RECOVERED


def test_a_tenant_whose_drafts_are_refused_is_decided_for_alone() -> None:
    good, bad = Member(SamplingClass.GREEDY, "search"), Member(SamplingClass.GREEDY, "support")
    run = simulate(lambda _, member: 0.9 if member.tenant == good.tenant else 0.02, 20, members=(good, good, good, bad))
    assert {found.scope for found in run.transitions if found.new is State.PLAIN} == {"greedy, tenant support"}


def test_classes_of_sampling_have_states_of_their_own() -> None:
    hot = Member(SamplingClass.HOT, "other")
    run = simulate(lambda _, member: 0.0 if member.sampling is hot.sampling else 0.9, 10, members=(GREEDY, hot), machine=Machine(row=0.03))
    assert {found.scope for found in run.transitions} == {"hot"}


def test_sampling_classes_split_at_a_temperature_of_one_half() -> None:
    classes = [sampling_class(SamplingParams(temperature=heat)) for heat in (0.0, 0.5, 0.51)]
    assert classes == [SamplingClass.GREEDY, SamplingClass.COOL, SamplingClass.HOT]


def test_the_operator_stops_drafts_at_once_and_starts_them_at_once() -> None:
    governor = Governor(ControlSettings(), FixedCosts())
    assert governor.lengths(0.0, [GREEDY], 0) != [0]
    governor.allow(1.0, False)
    assert governor.lengths(1.0, [GREEDY], 0) == [0]
    governor.allow(2.0, True)
    assert governor.lengths(2.0, [GREEDY], 0) != [0]
    assert [(found.new, found.reason) for found in governor.take_transitions()] == [
        (State.PLAIN, Reason.OPERATOR),
        (State.SPECULATING, Reason.OPERATOR),
    ]


def test_without_adaptive_k_is_always_the_largest() -> None:
    governor = Governor(ControlSettings(adaptive=False), FixedCosts())
    for second in range(200):
        assert governor.lengths(float(second), [GREEDY], 0) == [4]
        governor.round_done(GREEDY, 4, 4, 0)


def test_a_probe_leaves_out_sequences_whose_draft_is_far_behind() -> None:
    governor = Governor(ControlSettings(), FixedCosts())
    near, far = Member(SamplingClass.GREEDY, "other", 1), Member(SamplingClass.GREEDY, "other", 900)
    now = 0.0
    while governor.state is not State.PROBING:
        now += 0.02
        for member, length in zip((near, far), governor.lengths(now, [near, far], 0), strict=True):
            if length:
                governor.round_done(member, length, length, 0)
    assert governor.lengths(now, [near, far], 0) == [2, 0]
    assert governor.lengths(now, [far, far], 0) == [2, 2]  # all are: then those nearest go all the same


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(0, 4)), max_size=200))
def test_chances_stay_chances_and_survival_falls(rounds: list[tuple[int, int, int]]) -> None:
    window = AcceptanceWindow(4, 64)
    for offered, drafted, accepted in rounds:
        window.add(offered, min(drafted, offered), min(accepted, drafted, offered))
    survival = window.survival()
    assert all(0 <= chance <= 1 for chance in window.chances())
    assert list(survival) == sorted(survival, reverse=True)
    reach = window.reach()
    assert all(0 <= share <= 1 for share in reach)
    assert list(reach) == sorted(reach, reverse=True)


def test_a_steady_stream_is_estimated_as_it_is() -> None:
    window = AcceptanceWindow(4, 64)
    for number in range(600):
        window.add(4, 4, (4, 1, 4, 0)[number % 4])
    first, second, third, fourth = window.chances()
    assert first == pytest.approx(0.75, abs=0.03)
    assert second == pytest.approx(2 / 3, abs=0.05)
    assert third == pytest.approx(1, abs=0.1)
    assert fourth == pytest.approx(1, abs=0.1)


def test_a_round_costs_what_the_cost_model_says() -> None:
    """M3's worked example: a = 0.80, K = 4, 1.5 ms a draft step, 35 ms a verify pass: 12.2 ms a token."""

    class Worked:
        def seconds(self, kind: str, rows: int) -> float:
            return 0.035

        def draft_seconds(self, sequences: int, steps: int) -> float:
            return 0.0015 * steps

    survival = tuple(0.8**kept for kept in range(1, 5))
    share = Share(1, 4, survival)
    assert share.tokens == pytest.approx(expected_tokens(0.8, 4)) == pytest.approx(3.36, abs=0.01)
    assert seconds_per_token((share,), 0, Worked()) == pytest.approx(0.0122, abs=0.00005)


def test_a_draft_that_ends_early_costs_the_steps_and_rows_it_has() -> None:
    """Two of three rounds draft a second token: 1 + 2/3 steps, 1 + 1 + 2/3 rows."""

    class PerRow:
        def seconds(self, kind: str, rows: int) -> float:
            return 0.010 * rows

        def draft_seconds(self, sequences: int, steps: int) -> float:
            return 0.003 * steps

    share = Share(3, 2, (0.8, 0.5), (1.0, 2 / 3))
    assert share.rows == pytest.approx(8)
    somebody = 1 - (1 / 3) ** 3
    assert seconds_per_token((share,), 0, PerRow()) == pytest.approx((0.003 * (1 + somebody) + 0.080) / (3 * 2.3))


def test_the_window_knows_how_far_drafts_come() -> None:
    window = AcceptanceWindow(4, 64)
    for number in range(600):
        window.add(4, (4, 1)[number % 2], 1)
    assert window.reach()[:3] == pytest.approx((1, 0.5, 0.5), abs=0.06)
    assert window.survival()[1] == pytest.approx(0, abs=0.15)  # where a draft ended, nothing was won


def test_a_batch_that_comes_and_goes_by_one_does_not_flap() -> None:
    """At the edge of what pays, one sequence fewer is the same load: only a clearly smaller batch brings drafts back at once."""
    for seed in range(3):
        run = simulate(changing(0.8), 20, machine=Machine(row=0.03, noise=0.15), batch=lambda now: 32 - int(now / 0.15) % 3, seed=seed)
        assert len(run.transitions) <= 10


@pytest.mark.parametrize(
    ("acceptance", "batch", "reason"),
    [
        (lambda now, _member: 0.55 if now < 6 else 0.0, lambda _: 1, Reason.LOW_ACCEPTANCE),
        (lambda _now, _member: 0.8, lambda now: 1 if now < 6 else 32, Reason.LOAD),
    ],
)
def test_a_fall_back_names_what_has_changed_also_where_drafts_hardly_paid(
    acceptance: Acceptance, batch: Callable[[float], int], reason: Reason
) -> None:
    """In nine and six tenths of the runs; against the latest round that paid, it were a third and less than half of them."""
    machine = Machine(draft=0.0015, noise=0.25) if reason is Reason.LOW_ACCEPTANCE else Machine(row=0.08)
    named = []
    for seed in range(20):
        run = simulate(acceptance, 10, seed=seed, machine=machine, batch=batch)
        named += [next((found.reason for found in run.transitions if found.at >= 6 and found.new is State.PLAIN), None)]
    assert named.count(reason) >= {Reason.LOW_ACCEPTANCE: 18, Reason.LOAD: 12}[reason], named


def test_in_a_batch_too_large_for_the_draft_model_copies_are_still_drafted() -> None:
    """They cost a row of the target's pass each, and no step."""
    options = {"machine": Machine(row=0.02, draft=0.006), "batch": lambda _: 32, "repeats": 0.4}
    run = simulate(lambda _now, _member: 0.8, 20, **options)
    assert run.speed >= 1.15 * simulate(lambda _now, _member: 0.8, 20, fixed=0, **options).speed
    assert run.speed >= 0.99 * best_fixed(lambda _now, _member: 0.8, 20, **options)
    assert {found.scope for found in run.transitions if found.new is State.PLAIN} == {"greedy"}


def test_where_copies_are_refused_the_draft_model_drafts_instead() -> None:
    by_copies: Acceptance = lambda _now, member: 0.05 if member.copies else 0.9  # noqa: E731 - reads as the table it is
    run = simulate(by_copies, 30, repeats=0.5)
    assert run.speed >= 0.95 * best_fixed(by_copies, 30)
    assert run.speed >= 1.1 * best_fixed(by_copies, 30, repeats=0.5)  # a fixed K copies wherever it can


def test_a_first_step_that_costs_more_does_not_make_long_drafts_look_dear() -> None:
    """Twice a step beside the steps themselves, about as with one stream of SmolLM2."""
    machine, traffic = Machine(plain=0.0115, draft=0.0017, first=0.0033), changing(0.5, 0.78)
    ratios = [simulate(traffic, 60, machine=machine, seed=s).speed / best_fixed(traffic, 60, machine=machine, seed=s) for s in range(4)]
    assert min(ratios) >= 0.97
