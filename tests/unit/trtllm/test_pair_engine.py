"""Our decode loop over two engines that batch and cache by themselves: the answers and counts of the loop that does both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from builder.decoding.control import State
from builder.decoding.params import SamplingParams
from builder.errors import EngineError, OverloadError, RequestError
from builder.runtime.pair_decoder import Drawer, call_seed
from builder.runtime.request import Cancellation, FinishReason, Output, Request
from builder.runtime.settings import TenantLimits
from builder.runtime.steps import Step
from builder.runtime.switches import Switches
from tests.unit.runtime.harness import Bench, Letters, plain_greedy, tokens
from tests.unit.trtllm.pair_double import eventually

PROMPTS = [[1, 2, 3], [4], [5, 5, 5, 5, 5], [0, 9, 8, 7, 6, 5, 4, 3, 2, 1], [10, 3]]


@pytest.mark.parametrize(("k", "proposer"), [(1, "draft_model"), (2, "draft_model"), (4, "draft_model"), (4, "hybrid")])
def test_greedy_answers_and_counts_are_those_of_the_loop_with_its_own_caches(make_pair: Any, k: int, proposer: str) -> None:
    pair = make_pair(max_draft_tokens=k, proposer=proposer)
    bench = Bench(shared_kv=False, max_draft_tokens=k, prefix_caching=False, proposer=proposer)
    sampling = SamplingParams(max_tokens=30)
    for place, prompt in enumerate(PROMPTS):
        pair.submit(str(place), prompt, sampling)
        bench.submit(str(place), prompt, sampling)
    bench.run()
    for place, prompt in enumerate(PROMPTS):
        ours, theirs = pair.last(str(place)).stats, bench.last(str(place)).stats
        assert pair.tokens(str(place)) == bench.tokens(str(place)) == plain_greedy(tuple(prompt), 30)
        assert ours.acceptance_histogram == theirs.acceptance_histogram
        assert (ours.num_spec_steps, ours.num_draft_tokens) == (theirs.num_spec_steps, theirs.num_draft_tokens)
        assert (ours.target_passes, ours.target_passes_avoided) == (theirs.target_passes, theirs.target_passes_avoided)
        assert pair.last(str(place)).usage == bench.last(str(place)).usage
    assert sum(pair.last(str(place)).stats.num_accepted_draft_tokens for place in range(len(PROMPTS))) > 0


def test_without_drafts_one_request_streams_the_whole_answer(make_pair: Any) -> None:
    pair = make_pair()
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=20), speculation=False)
    assert pair.tokens("a") == plain_greedy((1, 2, 3), 20)
    assert [call.streams for call in pair.target.calls] == [True] and pair.draft.calls == []
    assert pair.target.left_early == 0, "a request that has given everything is not cancelled"
    assert pair.last("a").stats.optimisation == "plain" and pair.last("a").stats.target_passes == 20


def test_no_draft_is_longer_than_the_engine_or_the_rest_of_the_answer_allows(make_pair: Any) -> None:
    pair = make_pair(max_draft_tokens=4)
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=4))
    pair.last("a")
    first, second = pair.target.calls[:2]
    assert (first.draft, first.max_tokens) == ((), 1)
    assert len(second.draft) == 2 and second.max_tokens == 3
    assert all(call.max_tokens == len(call.draft) + 1 for call in pair.target.calls)


@pytest.mark.parametrize("speculation", [True, False])
def test_an_end_of_sequence_token_ends_the_answer_and_is_part_of_it(make_pair: Any, speculation: bool) -> None:
    whole = plain_greedy((1, 2, 3), 40)
    pair = make_pair(eos=frozenset({whole[7]}))
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=40), speculation=speculation)
    assert pair.tokens("a") == whole[: whole.index(whole[7]) + 1]
    assert pair.last("a").finish_reason is FinishReason.STOP


def test_a_stop_string_ends_the_answer(make_pair: Any) -> None:
    pair, whole = make_pair(tokenizer=Letters()), plain_greedy((1, 2, 3), 40)
    stop = "".join(chr(ord("a") + token) for token in whole[9:11])
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=40, stop=(stop,)))
    last = pair.last("a")
    assert last.finish_reason is FinishReason.STOP
    assert last.usage.completion_tokens <= 11 and pair.tokens("a") == whole[: last.usage.completion_tokens]


def test_the_kill_switch_holds_for_running_answers_and_lets_drafts_back(make_pair: Any) -> None:
    pair = make_pair()
    pair.target.pause = 0.01
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=50))
    eventually(lambda: len(pair.draft.calls) > 1)
    pair.engine.set_switches(Switches(speculation=False))
    eventually(lambda: pair.target.calls[-1].streams)
    assert pair.engine.control_report().state is State.PLAIN
    drafted = len(pair.draft.calls)
    eventually(lambda: len(tokens(pair.outputs["a"])) > 25)
    assert len(pair.draft.calls) == drafted
    pair.engine.set_switches(Switches())
    eventually(lambda: len(pair.draft.calls) > drafted)
    assert pair.tokens("a") == plain_greedy((1, 2, 3), 50)
    assert pair.target.left_early == 1, "the stream must be ended when drafts come back"


def test_a_tenant_without_speculation_is_decoded_plainly_beside_the_others(make_pair: Any) -> None:
    pair = make_pair()
    pair.engine.set_switches(Switches(tenant_speculation={"search": False}))
    pair.submit("a", [1, 2, 3], tenant="search")
    pair.submit("b", [1, 2, 3], tenant="support")
    assert pair.last("a").stats.optimisation == "plain" and pair.last("b").stats.optimisation == "speculative"
    assert pair.tokens("a") == pair.tokens("b")


def test_useless_drafts_are_given_up(make_pair: Any) -> None:
    pair = make_pair(adaptive=True, max_draft_tokens=4)
    pair.target.pause, pair.draft.pause = 0.002, 0.002  # a draft step costs what a pass of the target costs
    pair.draft.forced = [10, 10, 10, 10]
    transitions = []
    for turn in range(6):
        pair.submit(str(turn), [1, 2, 3], SamplingParams(max_tokens=55))
        assert pair.tokens(str(turn)) == plain_greedy((1, 2, 3), 55)
        transitions += pair.engine.control_report().transitions
    assert (transitions[0].old, transitions[0].new) == (State.SPECULATING, State.PLAIN)
    assert any(call.streams for call in pair.target.calls)


@pytest.mark.parametrize("speculation", [True, False])
def test_a_cancelled_request_ends_with_what_it_has(make_pair: Any, speculation: bool) -> None:
    pair = make_pair()
    pair.target.pause = 0.01
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=55), speculation=speculation)
    eventually(lambda: pair.outputs["a"])
    assert pair.engine.cancel("a", Cancellation.CLIENT)
    last = pair.last("a")
    assert (last.finish_reason, last.cancellation) == (FinishReason.CANCELLED, Cancellation.CLIENT)
    assert pair.tokens("a") == plain_greedy((1, 2, 3), 55)[: last.usage.completion_tokens]
    eventually(lambda: not pair.engine.cancel("a", Cancellation.CLIENT))


def test_a_deadline_holds_while_a_request_waits_for_its_place(make_pair: Any) -> None:
    pair = make_pair(max_batch_size=1)
    pair.target.pause = 0.02
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=55))
    pair.submit("b", [1, 2, 3], timeout=0.05)
    last = pair.last("b")
    assert (last.finish_reason, last.usage.completion_tokens) == (FinishReason.TIMEOUT, 0)
    pair.engine.cancel("a", Cancellation.CLIENT)
    pair.submit("c", [1, 2, 3], SamplingParams(max_tokens=3))
    assert pair.tokens("c") == plain_greedy((1, 2, 3), 3), "the place must be free again"


def test_no_more_run_at_once_than_the_batch_has_places_and_a_full_queue_refuses(make_pair: Any) -> None:
    pair = make_pair(max_batch_size=2, max_waiting=2)
    pair.target.pause = 0.01
    for name in "abcd":
        pair.submit(name, [1, 2, 3], SamplingParams(max_tokens=8))
    with pytest.raises(OverloadError, match="2 answers are waiting"):
        pair.submit("e", [1, 2, 3])
    assert [pair.tokens(name) for name in "abcd"] == [plain_greedy((1, 2, 3), 8)] * 4


def test_a_tenants_limit_is_held(make_pair: Any) -> None:
    pair = make_pair(tenants={"trial": TenantLimits(max_concurrent=1)})
    pair.target.pause = 0.01
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=30), tenant="trial")
    with pytest.raises(OverloadError, match="trial"):
        pair.submit("b", [1, 2, 3], tenant="trial")
    pair.last("a")
    eventually(lambda: not pair.engine.cancel("a", Cancellation.CLIENT))
    pair.submit("c", [1, 2, 3], tenant="trial")
    pair.last("c")


def test_a_draft_model_that_fails_costs_no_answer(make_pair: Any) -> None:
    pair = make_pair()
    pair.draft.fails = True
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=20))
    assert pair.tokens("a") == plain_greedy((1, 2, 3), 20)
    assert len(pair.draft.calls) == 1, "a draft model that has just failed is left alone"


def test_a_target_that_fails_ends_the_answer_with_its_words(make_pair: Any) -> None:
    pair = make_pair()
    pair.target.fails = True
    pair.submit("a", [1, 2, 3])
    assert pair.last("a").finish_reason is FinishReason.ERROR and "out of order" in pair.last("a").error
    pair.target.fails = False
    pair.submit("b", [1, 2, 3], SamplingParams(max_tokens=5))
    assert pair.tokens("b") == plain_greedy((1, 2, 3), 5)


def test_a_seed_repeats_an_answer_and_no_two_calls_draw_with_one_seed(make_pair: Any) -> None:
    pair, sampling = make_pair(), SamplingParams(max_tokens=24, temperature=1.0, seed=7)
    pair.submit("a", [1, 2, 3], sampling)
    first = pair.tokens("a")
    seeds = [call.seed for call in pair.target.calls]
    pair.target.pause = pair.draft.pause = 0.001
    pair.submit("c", [4, 5], SamplingParams(max_tokens=40))
    pair.submit("b", [1, 2, 3], sampling)
    pair.submit("d", [6, 7, 8], SamplingParams(max_tokens=40))
    assert pair.tokens("b") == first, "whoever runs beside it"
    assert len(set(seeds)) == len(seeds) and None not in seeds
    assert not any(call.streams for call in pair.target.calls), "drafts follow its first token at once"
    assert call_seed(7, 3, Drawer.TARGET) != call_seed(7, 3, Drawer.DRAFT)


@pytest.mark.parametrize("draft_logits", [False, True])
def test_a_sampled_answer_has_the_targets_distribution(make_pair: Any, draft_logits: bool) -> None:
    """The second token of many answers against its law, which is summed over all first tokens."""
    pair, answers = make_pair(max_draft_tokens=2, draft_logits=draft_logits, max_waiting=2000, noise=2.0), 500
    sampling = SamplingParams(max_tokens=3, temperature=1.0)
    for number in range(answers):
        pair.submit(str(number), [4], replace(sampling, seed=number))
    seconds = [pair.tokens(str(number))[1] for number in range(answers)]
    first = pair.target.law([4], sampling)
    law = sum(float(first[token]) * pair.target.law([4, token], sampling) for token in range(11))
    assert chisquare(np.bincount(seconds, minlength=11), answers * law.numpy()).pvalue > 0.01
    sent = [call.draft_logits is not None for call in pair.target.calls if call.draft]
    assert sent and set(sent) == {draft_logits}


def test_what_the_backend_cannot_do_is_refused_by_name(make_pair: Any) -> None:
    pair = make_pair()
    for sampling, name in ((SamplingParams(logprobs=1), "logprobs"), (SamplingParams(temperature=1.0, min_p=0.1), "min_p")):
        with pytest.raises(RequestError, match=name):
            pair.submit("a", [1, 2, 3], sampling)
    pair.submit("b", [1, 2, 3], SamplingParams(max_tokens=20, repetition_penalty=1.3))
    assert pair.tokens("b") == plain_greedy((1, 2, 3), 20, 1.3)
    assert pair.draft.calls == []


def test_several_answers_to_one_prompt_share_its_usage(make_pair: Any) -> None:
    pair = make_pair()
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=10, temperature=1.0, seed=1, n=3))
    pair.last("a")
    ends = [output for output in pair.outputs["a"] if output.finish_reason]
    assert sorted((end.index, end.usage.prompt_tokens) for end in ends) == [(0, 3), (1, 0), (2, 0)]


def test_stopping_ends_every_answer_and_closes_the_models(make_pair: Any) -> None:
    pair = make_pair(max_batch_size=1)
    pair.target.pause = 0.01
    for name in "ab":
        pair.submit(name, [1, 2, 3], SamplingParams(max_tokens=55))
    pair.engine.stop()
    assert [pair.last(name).cancellation for name in "ab"] == [Cancellation.SHUTDOWN] * 2
    assert pair.closed.is_set()
    with pytest.raises(EngineError, match="not started"):
        pair.submit("c", [1])


def test_a_consumer_that_raises_loses_its_own_answer_only(make_pair: Any) -> None:
    pair = make_pair()
    pair.target.pause = 0.005
    heard: list[Output] = []

    def raises(output: Output) -> None:
        heard.append(output)
        raise OSError("gone")

    pair.engine.submit(Request("a", (1, 2, 3), SamplingParams(max_tokens=55)), raises)
    pair.submit("b", [1, 2, 3], SamplingParams(max_tokens=10))
    assert pair.tokens("b") == plain_greedy((1, 2, 3), 10)
    eventually(lambda: not pair.engine.cancel("a", Cancellation.CLIENT))
    assert len(heard) == 1


def test_the_policy_decides_who_of_the_waiting_is_next(make_pair: Any) -> None:
    pair = make_pair(max_batch_size=1, policy="priority")
    pair.target.pause = 0.005
    began = {"a": (1, 2, 3), "later": (4, 4), "urgent": (5, 5)}
    for name, prompt in began.items():
        pair.submit(name, prompt, SamplingParams(max_tokens=8), priority=0 if name == "urgent" else 5)
        eventually(lambda: pair.target.calls)  # the first has its place before the others come
    for name in began:
        pair.last(name)
    starts = [call.token_ids for call in pair.target.calls if call.token_ids in began.values()]
    assert starts == [(1, 2, 3), (5, 5), (4, 4)]


def test_a_trace_sees_the_prompt_and_every_round(make_pair: Any) -> None:
    class Observer:
        active = True

        def __init__(self) -> None:
            self.steps: list[Step] = []

        def step_done(self, step: Step) -> None:
            self.steps.append(step)

    pair, observer = make_pair(), Observer()
    pair.engine.observe_steps(observer)
    pair.submit("a", [1, 2, 3], SamplingParams(max_tokens=20))
    stats = pair.last("a").stats
    assert [prefill.tokens for step in observer.steps for prefill in step.prefills] == [3]
    rounds = [done for step in observer.steps for done in step.rounds]
    assert sum(done.drafted for done in rounds) == stats.num_draft_tokens
    assert sum(done.accepted for done in rounds) == stats.num_accepted_draft_tokens
    assert all(step.began <= step.drafted <= step.ended for step in observer.steps)
