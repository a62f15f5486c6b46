"""The control inside the loop: K follows what is measured, tokens stay the same, and acceptance returns with the draft."""

from __future__ import annotations

import pytest
import torch

from builder.decoding.control import State
from builder.decoding.params import SamplingParams
from builder.decoding.stopping import BINS, StopRule
from builder.runtime.settings import EngineSettings
from builder.runtime.speculation import STALL, UNMEASURED_ROWS, SpeculationControl, record
from builder.runtime.step_costs import StepCosts
from builder.runtime.switches import Switches
from tests.unit.runtime.harness import Bench, plain_greedy

torch.set_num_threads(1)
LONG = SamplingParams(max_tokens=57)


def forced(bench: Bench, *lengths: int) -> None:
    """Let the control answer with these lengths in turn, over and over, whatever this machine's passes cost."""
    steps = iter(lengths * 1000)
    bench.scheduler.control._governor.lengths = lambda now, members, plain: [next(steps)] * len(members)


@pytest.mark.parametrize("shared_kv", [True, False])
@pytest.mark.parametrize("lengths", [(0, 3, 1, 0, 0, 4), (4, 0), (1,)])
def test_whatever_k_the_control_chooses_greedy_tokens_are_the_same(shared_kv: bool, lengths: tuple[int, ...]) -> None:
    bench = Bench(proposer="draft_model", shared_kv=shared_kv, max_draft_tokens=4, adaptive=True)
    forced(bench, *lengths)
    for name in "ab":
        bench.submit(name, (1, 2, ord(name) % 11), LONG)
    bench.run(audit=True)
    for name in "ab":
        assert bench.tokens(name) == plain_greedy((1, 2, ord(name) % 11), 57)


@pytest.mark.parametrize("shared_kv", [True, False])
def test_after_a_pause_the_same_sequence_is_accepted_as_before(shared_kv: bool) -> None:
    """A twin of the target is always right, unless its cache is stale."""
    bench = Bench(proposer="draft_model", noise=0.0, shared_kv=shared_kv, max_draft_tokens=3, adaptive=True)
    if not shared_kv:
        bench.engine._decoder._drafter._runner = bench.draft = twin = type(bench.target)(11)
        twin.allocate_cache(bench.settings.num_blocks, bench.settings.block_size)
    forced(bench, 3, 3, 0, 0, 0, 0, 0, 0, 3, 3)
    bench.submit("a", (1, 2, 3), LONG)
    bench.run(audit=True)
    stats = bench.last("a").stats
    assert stats is not None
    assert stats.num_draft_tokens == stats.num_accepted_draft_tokens > 12


def test_the_loop_tells_the_control_what_was_kept_and_what_it_cost() -> None:
    bench = Bench(proposer="draft_model", noise=0.0, max_draft_tokens=3, adaptive=True)
    forced(bench, 3)
    bench.submit("a", (1, 2, 3), LONG)
    bench.run()
    control = bench.scheduler.control
    (controller,) = control._governor._controllers.values()
    assert controller.window.survival()[2] > 0.8
    assert control._costs.seconds("target", 4) is not None
    assert control._costs.draft_seconds(1, 3) is not None


@pytest.mark.parametrize("may_copy", [(True,), (False,), (True, False, False)])
def test_copied_drafts_are_counted_apart_and_the_control_may_have_the_model_draft_instead(may_copy: tuple[bool, ...]) -> None:
    bench = Bench(proposer="hybrid", max_draft_tokens=3, adaptive=True)
    forced(bench, 3)
    governor, answers = bench.scheduler.control._governor, iter(may_copy * 1000)
    governor.may_copy = lambda member: next(answers)
    bench.submit("a", (1, 2, 3, 1, 2, 3), LONG)
    bench.run(audit=True)
    assert bench.tokens("a") == plain_greedy((1, 2, 3, 1, 2, 3), 57)
    counted = {scope.copied for scope, controller in governor._controllers.items() if controller.window.rounds}
    assert (False in counted, True in counted) == (True, True in may_copy)


def test_an_answer_says_in_which_state_and_with_which_k_it_ended() -> None:
    bench = Bench(proposer="draft_model", max_draft_tokens=3, adaptive=True)
    forced(bench, 2)
    bench.submit("a", (1, 2, 3), LONG)
    bench.run()
    stats = bench.last("a").stats
    assert stats is not None
    assert (stats.state, stats.draft_length) == ("speculating", 2)


def test_a_sampled_answer_with_a_seed_keeps_its_k_and_comes_out_the_same() -> None:
    seeded = SamplingParams(max_tokens=40, temperature=1.0, seed=7)
    answers = []
    for lengths in ((0,), (3, 0, 1)):
        bench = Bench(proposer="draft_model", max_draft_tokens=3, adaptive=True)
        forced(bench, *lengths)
        bench.submit("a", (1, 2, 3), seeded)
        bench.run()
        answers.append(bench.tokens("a"))
    assert answers[0] == answers[1]


def test_an_unsure_draft_ends_early_but_never_a_seeded_one() -> None:
    bench = Bench(proposer="draft_model", max_draft_tokens=4, adaptive=True, early_stop=True)
    forced(bench, 4)
    bench.scheduler.control._governor.stop_rule = lambda member: StopRule((0.0,) * BINS, 0.5)
    for name, sampling in {"a": LONG, "b": SamplingParams(max_tokens=57, temperature=1.0, seed=1)}.items():
        bench.submit(name, (1, 2, 3), sampling)
    bench.run(audit=True)
    assert bench.tokens("a") == plain_greedy((1, 2, 3), 57)
    for name, most in {"a": 1, "b": 4}.items():
        stats = bench.last(name).stats
        assert stats is not None
        per_round = stats.num_draft_tokens / stats.num_spec_steps
        assert per_round == 1 if most == 1 else per_round > 3


def test_the_operators_word_is_a_transition_of_the_report() -> None:
    bench = Bench(proposer="draft_model", max_draft_tokens=3, adaptive=True)
    bench.engine.set_switches(Switches(speculation=False))
    report = bench.engine.control_report()
    assert (report.state, report.draft_tokens) == (State.PLAIN, 0)
    assert [(found.old, found.new, found.reason) for found in report.transitions] == [("speculating", "plain", "operator")]
    assert bench.engine.control_report().transitions == ()


def test_a_stalled_pass_counts_as_a_slow_one_and_no_more() -> None:
    costs = StepCosts()
    for _ in range(16):
        record(costs, "target", 1, 0.01)
    record(costs, "target", 1, 10.0)
    assert costs.seconds("target", 1) == pytest.approx(0.01 + (STALL - 1) * 0.01 / 16)


def test_passes_with_prompts_in_them_do_not_say_what_checking_drafts_costs() -> None:
    control = SpeculationControl(EngineSettings(), own_draft_cache=False)
    control.decoded(4, 0.010, 0.0, 4)
    control.decoded(8, 0.020, 0.0, 4)
    control.prefilled(8, 0.001)
    assert control._costs.seconds("target", 8) == pytest.approx(0.020)


def test_prompts_may_double_the_time_of_a_pass_and_no_more() -> None:
    control = SpeculationControl(EngineSettings(), own_draft_cache=False)
    assert control.rows_beside(4, 512) == 4 + UNMEASURED_ROWS
    control.decoded(4, 0.010, 0.0, 4)
    assert control.rows_beside(4, 512) == 4 + UNMEASURED_ROWS  # no pass with prompts has been seen
    control.prefilled(10, 0.011)
    control.prefilled(100, 0.029)  # 0.2 ms a row: 20 ms are 55 rows
    assert control.rows_beside(4, 512) == 55
    assert control.rows_beside(4, 40) == 40
    assert control.rows_beside(2, 512) == 2 + UNMEASURED_ROWS  # two have not been seen alone


def test_a_slow_pass_still_has_a_row_for_everyone_who_decodes() -> None:
    control = SpeculationControl(EngineSettings(), own_draft_cache=False)
    control.decoded(8, 0.010, 0.0, 8)
    control.prefilled(9, 0.100)
    assert control.rows_beside(8, 512) == 8
