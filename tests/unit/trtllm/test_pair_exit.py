"""Early exit over two engines: which drafted tokens leave unverified, what that does to answers, and what they say of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from builder.decoding.exits.confidence import probabilities_of
from builder.decoding.exits.rounds import leave_in_rounds
from builder.decoding.exits.rule import FULL, Answers, ExitLimits
from builder.decoding.params import SamplingParams
from builder.runtime.pair_exit import PairExit
from builder.runtime.request import DecodeStats, FinishReason
from builder.runtime.steps import Step
from builder.runtime.switches import Switches
from tests.unit.runtime.harness import Letters, plain_greedy, tokens, whole_pass
from tests.unit.trtllm.pair_double import Model, Pair, eventually

LAYER, DEPTH, K = 2, 5, 4
PROMPTS = [[1, 2, 3], [4], [5, 5, 5, 5, 5], [10, 3]]
LIMITS = ExitLimits(max_pending=3, protected_tokens=4)


def exit_at(threshold: float, limits: ExitLimits = LIMITS, ends: frozenset[int] = frozenset()) -> PairExit:
    return PairExit(LAYER, DEPTH, threshold, limits, ends)


def stats(pair: Pair, name: str) -> DecodeStats:
    found = pair.last(name).stats
    assert found is not None
    return found


def said(model: Model, text: list[int]) -> list[int]:
    """The model's most probable token after each token of the text."""
    found: list[int] = whole_pass(model.double.runner, text)[0].argmax(-1).tolist()
    return found


def judged(draft: Model, prompt: list[int], answer: list[int]) -> Answers:
    """What the draft would have said at every token of an answer, and how sure of it it is."""
    logits = whole_pass(draft.double.runner, [*prompt, *answer[:-1]])[0][len(prompt) - 1 :].numpy()
    own = logits.argmax(-1)
    confidence = probabilities_of(own.tolist(), logits).astype(np.float64)[:, None]
    return Answers(confidence, (own == np.array(answer))[:, None], (len(answer),))


def test_with_threshold_0_every_allowed_token_leaves_and_the_answer_is_the_drafts_but_for_the_targets_tokens(make_pair: Any) -> None:
    pair = make_pair(exit_at=exit_at(0.0), noise=2.0)
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=40))
    answer, found = pair.tokens("a"), stats(pair, "a")
    text = [*PROMPTS[0], *answer]
    by_draft, by_target = (said(model, text[:-1])[len(PROMPTS[0]) - 1 :] for model in (pair.draft, pair.target))
    left = leave_in_rounds(judged(pair.draft, PROMPTS[0], answer), 0.0, LIMITS, K).chosen != FULL
    assert found.exit_layers == {LAYER: left.sum(), DEPTH: 40 - left.sum()} and left.sum() > 15
    assert answer == np.where(left, by_draft, by_target).tolist()
    assert answer != plain_greedy(tuple(PROMPTS[0]), 40), "else nothing was lost, and nothing shown"
    assert (found.optimisation, found.early_exit, found.pending_fills) == ("early_exit", "on", left.sum())


@pytest.mark.parametrize("threshold", [0.2, 0.35, 0.5])
@pytest.mark.parametrize("limits", [ExitLimits(1), ExitLimits(2, 6), ExitLimits(9, 3)])
def test_tokens_leave_by_the_rule_that_calibration_plays(make_pair: Any, threshold: float, limits: ExitLimits) -> None:
    pair, length = make_pair(exit_at=exit_at(threshold, limits), noise=1.0), 40
    for place, prompt in enumerate(PROMPTS):
        pair.submit(str(place), prompt, SamplingParams(max_tokens=length))
    answers = [pair.tokens(str(place)) for place in range(len(PROMPTS))]  # all, before the draft's runner is used by this thread
    for place, prompt in enumerate(PROMPTS):
        played = leave_in_rounds(judged(pair.draft, prompt, answers[place]), threshold, limits, K)
        found = stats(pair, str(place))
        assert found.exit_layers.get(LAYER, 0) == (played.chosen != FULL).sum()
        assert found.target_passes == played.passes
        assert sum(found.exit_layers.values()) == length


def test_with_a_threshold_above_1_answers_and_counts_are_those_of_plain_speculation(make_pair: Any) -> None:
    exits, plain = make_pair(exit_at=exit_at(1.1)), make_pair()
    for place, prompt in enumerate(PROMPTS):
        for pair in (exits, plain):
            pair.submit(str(place), prompt, SamplingParams(max_tokens=30))
        ours, theirs = stats(exits, str(place)), stats(plain, str(place))
        assert exits.tokens(str(place)) == plain.tokens(str(place))
        names = ("optimisation", "num_spec_steps", "num_draft_tokens", "acceptance_histogram", "target_passes", "target_passes_avoided")
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
        assert (ours.exit_layers, theirs.exit_layers) == ({DEPTH: 30}, {})
    assert [call.token_ids for call in exits.target.calls] == [call.token_ids for call in plain.target.calls]


@pytest.mark.parametrize("limits", [ExitLimits(1, 1), ExitLimits(2, 9), ExitLimits(4, 17)])
def test_protected_tokens_run_in_full_and_no_more_than_max_pending_leave_in_a_row(make_pair: Any, limits: ExitLimits) -> None:
    pair = make_pair(exit_at=exit_at(0.0, limits))
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=40))
    pair.last("a")
    rounds = list(zip(pair.draft.calls, pair.target.calls[1:], strict=False))
    left = [len(target.token_ids) - len(draft.token_ids) for draft, target in rounds]
    answered = [len(draft.token_ids) - len(PROMPTS[0]) for draft, _ in rounds]
    assert all(not count for count, known in zip(left, answered, strict=True) if known < limits.protected_tokens)
    assert max(left) == limits.max_pending
    assert all(target.max_tokens == len(target.draft) + 1 for target in pair.target.calls), "a token of each round is the target's own"


def free_run(make_pair: Any) -> tuple[list[int], list[bool]]:
    """An answer in which all that may leave does, and which of its tokens left."""
    pair = make_pair(exit_at=exit_at(0.0), noise=2.0)
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=40))
    answer = pair.tokens("a")
    played = leave_in_rounds(judged(pair.draft, PROMPTS[0], answer), 0.0, LIMITS, K)
    return answer, (played.chosen != FULL).tolist()


def test_a_stop_string_ends_the_answer_within_what_left(make_pair: Any) -> None:
    whole, left = free_run(make_pair)
    ended = set()
    for place in range(12, 30):
        pair = make_pair(exit_at=exit_at(0.0), noise=2.0, tokenizer=Letters())
        stop = "".join(chr(ord("a") + token) for token in whole[place : place + 2])
        pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=40, stop=(stop,)))
        last = pair.last("a")
        length = last.usage.completion_tokens
        assert last.finish_reason is FinishReason.STOP and pair.tokens("a") == whole[:length]
        assert stats(pair, "a").exit_layers == {LAYER: sum(left[:length]), DEPTH: length - sum(left[:length])}
        ended.add(left[length - 1] and left[length])
    assert ended == {False, True}, "some ends lie before the last token of those that left together"


def test_where_all_of_a_draft_leaves_nothing_was_verified_and_nothing_is_counted_as_such(make_pair: Any) -> None:
    pair = make_pair(exit_at=exit_at(0.0, ExitLimits(K, 1)))
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=31))
    found = stats(pair, "a")
    assert (found.num_spec_steps, found.num_draft_tokens, found.acceptance_histogram) == (0, 0, ())
    assert found.exit_layers == {LAYER: 24, DEPTH: 7} and found.target_passes == 7  # the prompt's, and six of five tokens each


@pytest.mark.parametrize("length", range(18, 26))
def test_max_tokens_and_the_context_end_an_answer_at_every_place_of_a_round(make_pair: Any, length: int) -> None:
    pair = make_pair(exit_at=exit_at(0.0))
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=length))
    pair.submit("b", [1] * (64 - length), SamplingParams(max_tokens=60))
    for name in "ab":
        assert pair.last(name).finish_reason is FinishReason.LENGTH
        assert len(pair.tokens(name)) == sum(stats(pair, name).exit_layers.values()) == length


def test_an_end_of_sequence_token_never_leaves_and_ends_the_answer_where_the_target_says_so(make_pair: Any) -> None:
    whole, left = free_run(make_pair)
    end = next(token for place, token in enumerate(whole) if left[place] and token not in whole[:place])
    pair = make_pair(exit_at=exit_at(0.0, ends=frozenset({end})), eos=frozenset({end}), noise=2.0)
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=40))
    answer = pair.tokens("a")
    assert any(end in call.draft for call in pair.target.calls), "it was drafted, and the target asked"
    assert not any(end in call.token_ids[len(PROMPTS[0]) :] for call in pair.target.calls)
    assert end not in answer[:-1]


def test_the_flag_holds_from_the_next_round_on_in_flight_too_and_for_a_tenant(make_pair: Any) -> None:
    pair = make_pair(exit_at=exit_at(0.0))
    pair.target.pause = 0.01
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=55))
    eventually(lambda: len(tokens(pair.outputs["a"])) > 20)
    pair.engine.set_switches(Switches(early_exit=False))
    found = stats(pair, "a")
    assert (found.early_exit, found.optimisation) == ("operator", "early_exit")
    assert 0 < found.exit_layers[LAYER] < 30 and found.num_accepted_draft_tokens > 0, "speculation goes on"
    pair.engine.set_switches(Switches(tenant_early_exit={"search": False}))
    pair.submit("b", PROMPTS[0], SamplingParams(max_tokens=20), tenant="search")
    pair.submit("c", PROMPTS[0], SamplingParams(max_tokens=20), tenant="support")
    assert (stats(pair, "b").early_exit, stats(pair, "c").early_exit) == ("operator", "on")
    assert pair.tokens("b") == plain_greedy(tuple(PROMPTS[0]), 20)


@pytest.mark.parametrize(
    ("sampling", "fields", "state"),
    [
        (SamplingParams(max_tokens=20), {"early_exit": False}, "declined"),
        (SamplingParams(max_tokens=20, temperature=0.7, seed=1), {}, "temperature"),
        (SamplingParams(max_tokens=20, repetition_penalty=1.3), {}, "sampling"),
    ],
)
def test_a_request_it_does_not_hold_for_loses_nothing_and_says_why(
    make_pair: Any, sampling: SamplingParams, fields: dict[str, Any], state: str
) -> None:
    pair, plain = make_pair(exit_at=exit_at(0.0)), make_pair()
    for each in (pair, plain):
        each.submit("a", PROMPTS[0], sampling, **fields)
    assert pair.tokens("a") == plain.tokens("a")
    assert stats(pair, "a").early_exit == state and stats(pair, "a").exit_layers == {DEPTH: 20}
    assert not any(call.returns_logits for call in pair.draft.calls)


def test_without_speculation_nothing_is_drafted_and_nothing_leaves(make_pair: Any) -> None:
    pair = make_pair(exit_at=exit_at(0.0))
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=20), speculation=False)
    assert pair.tokens("a") == plain_greedy(tuple(PROMPTS[0]), 20)
    assert stats(pair, "a").optimisation == "plain" and pair.draft.calls == []


def test_a_pipeline_without_a_calibration_says_none(make_pair: Any) -> None:
    pair = make_pair()
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=10))
    assert stats(pair, "a").early_exit == "none" and stats(pair, "a").exit_layers == {}


def test_a_draft_that_gives_no_logits_ends_the_answer_with_the_setting_to_mend(make_pair: Any) -> None:
    pair = make_pair(exit_at=exit_at(0.0))
    pair.draft.mute = True
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=20))
    last = pair.last("a")
    assert last.finish_reason is FinishReason.ERROR and "early_exit.mode" in last.error and "Build both engines again" in last.error


def test_a_trace_tells_the_layer_of_rounds_in_which_tokens_left(make_pair: Any) -> None:
    class Recorder:
        active = True

        def __init__(self) -> None:
            self.steps: list[Step] = []

        def step_done(self, step: Step) -> None:
            self.steps.append(step)

    pair, recorder = make_pair(exit_at=exit_at(0.0)), Recorder()
    pair.engine.observe_steps(recorder)
    pair.submit("a", PROMPTS[0], SamplingParams(max_tokens=30))
    found = stats(pair, "a")
    rounds = [done for step in recorder.steps for done in step.rounds]
    assert {done.left_at for done in rounds} == {None, LAYER}
    assert sum(done.drafted for done in rounds) == found.num_draft_tokens
    assert sum(done.tokens for done in rounds) == 29


def test_the_probability_of_a_token_is_that_of_the_softmax_whatever_type_the_logits_have() -> None:
    logits = np.array([[1.0, 3.0, 2.0], [700.0, -700.0, 700.0]])
    for kind in (np.float16, np.float32):
        found = probabilities_of([1, 2], logits.astype(kind))
        assert found == pytest.approx([math.e**3 / (math.e + math.e**2 + math.e**3), 0.5])
