"""Early exit in the loop: who leaves, what is filled later and that it is right, who never leaves, what the answer says of it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from builder.decoding.exits.confidence import probability
from builder.decoding.exits.rule import Answers, ExitLimits, exits
from builder.decoding.params import SamplingParams
from builder.errors import EngineError
from builder.runtime.exits import ExitPoint, Exits
from builder.runtime.request import DecodeStats
from builder.runtime.steps import Step
from builder.runtime.switches import Switches
from tests.unit.runtime.harness import Bench, LensHead, plain_greedy, whole_pass
from tests.unit.toy_runner import ToyRunner

LAYERS, PROMPTS = 4, ([3, 1, 4, 1, 5], [2, 7], [1, 8, 2, 8, 1, 8, 2])
LIMITS = ExitLimits(max_pending=3)


def bench(thresholds: dict[int, float], *, limits: ExitLimits = LIMITS, **settings: object) -> Bench:
    def exits(target: ToyRunner) -> Exits:
        points = tuple(ExitPoint(layer, LensHead(target), threshold) for layer, threshold in thresholds.items())
        return Exits(points, probability, limits)

    return Bench(layers=LAYERS, exits=exits, proposer="none", **settings)


def stats(made: Bench, name: str) -> DecodeStats:
    found = made.last(name).stats
    assert found is not None
    return found


def test_steps_tell_the_layer_of_each_streams_own_token() -> None:
    made, rounds = bench({2: 0.7}), defaultdict(list)

    class Recorder:
        active = True

        def step_done(self, step: Step) -> None:
            for found in step.rounds:
                rounds[found.request_id].append(found.left_at)

    made.engine.observe_steps(Recorder())
    for name, prompt in zip("abc", PROMPTS, strict=True):
        made.submit(name, prompt, SamplingParams(max_tokens=20))
    made.run()
    for name in "abc":
        layers = Counter(LAYERS if layer is None else layer for layer in rounds[name])
        layers[LAYERS] += 1  # the first token is the prompt's, which is no round
        assert layers == stats(made, name).exit_layers
    assert len({tuple(rounds[name]) for name in "abc"}) == 3, "all alike would hide a mix-up"


def expected(prompt: list[int], count: int, thresholds: dict[int, float], limits: ExitLimits) -> tuple[list[int], dict[int, int]]:
    """Tokens and layers by the rule itself, each from whole passes over everything before."""
    runner, ids, pending, layers = ToyRunner(layers=LAYERS), list(prompt), 0, dict.fromkeys((*thresholds, LAYERS), 0)
    for number in range(count):
        left = LAYERS
        logits = whole_pass(runner, ids)[0][-1]
        if number >= limits.protected_tokens and pending < limits.max_pending:
            for layer, threshold in thresholds.items():
                inner = whole_pass(runner, ids, layer)[0][-1]
                if float(probability(inner)) >= threshold:
                    left, logits = layer, inner
                    break
        pending = pending + 1 if left < LAYERS else 0
        layers[left] += 1
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :], {layer: tokens for layer, tokens in layers.items() if tokens}


def layers_by_calibration(prompt: list[int], tokens: list[int], thresholds: dict[int, float], limits: ExitLimits) -> dict[int, int]:
    """How many of the tokens leave at each layer by the rule that thresholds are tested with."""
    runner, ids = ToyRunner(layers=LAYERS), prompt + tokens[:-1]
    inner = [probability(whole_pass(runner, ids, layer)[0][len(prompt) - 1 :]) for layer in thresholds]
    confidence = torch.stack(inner, dim=1).double().numpy()
    chosen = exits(Answers(confidence, confidence > 0, (len(tokens),)), np.array(list(thresholds.values())), limits)
    return dict(Counter([*thresholds, LAYERS][place] for place in chosen.tolist()))


@pytest.mark.parametrize("thresholds", [{2: 0.5}, {1: 0.6, 3: 0.4}, {1: 0.35, 2: 0.45, 3: 0.55}, {3: 0.0}])
@pytest.mark.parametrize("limits", [ExitLimits(1), ExitLimits(3), ExitLimits(3, protected_tokens=6)])
def test_tokens_leave_by_the_rule_and_keys_and_values_are_filled_as_the_full_model_writes_them(
    thresholds: dict[int, float], limits: ExitLimits
) -> None:
    made = bench(thresholds, limits=limits)
    for number, prompt in enumerate(PROMPTS):
        made.submit(str(number), prompt, SamplingParams(max_tokens=20))
    made.run(audit=True)
    for number, prompt in enumerate(PROMPTS):
        tokens, layers = expected(prompt, 20, thresholds, limits)
        found = stats(made, str(number))
        assert made.tokens(str(number)) == tokens
        assert layers_by_calibration(prompt, tokens, thresholds, limits) == layers
        assert found.exit_layers == layers
        assert found.optimisation == "early_exit"
        assert found.average_layers == pytest.approx(sum(layer * count for layer, count in layers.items()) / 20)


def test_all_that_leave_are_filled_but_those_after_the_last_full_pass() -> None:
    made = bench({2: 0.0})
    made.submit("a", PROMPTS[0], SamplingParams(max_tokens=12))  # full, 3 exits, full, 3 exits, full, 3 exits
    made.run(audit=True)
    assert stats(made, "a").exit_layers == {2: 9, LAYERS: 3}
    assert stats(made, "a").pending_fills == 6


def test_a_pass_in_which_all_leave_ends_at_the_exit() -> None:
    made = bench({1: 0.0})
    made.submit("a", PROMPTS[0], SamplingParams(max_tokens=8))
    made.engine.step()
    ran = made.target.layers_run
    made.engine.step()
    assert made.target.layers_run - ran == 1


@pytest.mark.parametrize(
    ("sampling", "fields", "state"),
    [
        (SamplingParams(max_tokens=9, temperature=0.7, seed=1), {}, "temperature"),
        (SamplingParams(max_tokens=9, repetition_penalty=1.2), {}, "sampling"),
        (SamplingParams(max_tokens=9, logprobs=1), {}, "sampling"),
        (SamplingParams(max_tokens=9), {"early_exit": False}, "declined"),
        (SamplingParams(max_tokens=9), {"tenant": "search"}, "operator"),
    ],
)
def test_a_request_it_does_not_hold_for_runs_in_full_beside_others_that_leave_and_says_why(
    sampling: SamplingParams, fields: dict[str, object], state: str
) -> None:
    alone = Bench(layers=LAYERS, proposer="none")
    made = bench({2: 0.0})
    made.engine.set_switches(Switches(tenant_early_exit={"search": False}))
    for each in (alone, made):
        each.submit("full", PROMPTS[0], sampling, **fields)
    made.submit("leaves", PROMPTS[1], SamplingParams(max_tokens=9))
    alone.run()
    made.run(audit=True)
    assert made.tokens("full") == alone.tokens("full")
    assert (stats(made, "full").optimisation, stats(made, "full").early_exit) == ("plain", state)
    assert (stats(made, "leaves").optimisation, stats(made, "leaves").early_exit) == ("early_exit", "on")
    assert stats(alone, "full").early_exit == "none" and stats(alone, "full").exit_layers == {}


def test_an_operator_ends_it_for_running_requests_whose_waiting_tokens_are_then_filled() -> None:
    made = bench({2: 0.0})
    made.submit("a", PROMPTS[0], SamplingParams(max_tokens=20))
    for _ in range(3):
        made.engine.step()
    made.engine.set_switches(Switches(early_exit=False))
    made.run(audit=True)
    assert stats(made, "a").exit_layers == {2: 2, LAYERS: 18}
    assert stats(made, "a").pending_fills == 2
    assert stats(made, "a").early_exit == "operator"


def test_prompts_arrive_and_sequences_give_way_while_others_leave() -> None:
    made = bench({1: 0.6, 3: 0.3}, num_blocks=9, max_batch_size=3)
    for number, prompt in enumerate(PROMPTS):
        made.submit(str(number), prompt, SamplingParams(max_tokens=18))
        made.engine.step()
        made.audit()
    made.run(audit=True)
    assert made.scheduler.preemptions > 0
    for number in range(len(PROMPTS)):
        assert len(made.tokens(str(number))) == 18


def test_what_left_is_not_published_as_a_prefix_before_it_is_filled() -> None:
    made = bench({2: 0.0}, limits=ExitLimits(9))
    made.submit("a", PROMPTS[0], SamplingParams(max_tokens=9))
    made.run(audit=True)  # nine tokens, one of them full: the audit compares every cached block with a whole pass
    made.submit("b", [*PROMPTS[0], *made.tokens("a")], SamplingParams(max_tokens=3))
    made.run(audit=True)
    usage = made.last("b").usage
    assert usage is not None and usage.cached_tokens == 4  # one block: the prompt is one token longer


def test_a_token_is_never_taken_where_the_head_has_no_confidence() -> None:
    made = bench({2: math.inf})
    made.submit("a", PROMPTS[0], SamplingParams(max_tokens=9))
    made.run(audit=True)
    assert made.tokens("a") == plain_greedy(tuple(PROMPTS[0]), 9, layers=LAYERS)
    assert stats(made, "a").optimisation == "plain"


def test_a_proposer_beside_early_exit_is_refused() -> None:
    with pytest.raises(EngineError, match="do not go together"):
        Bench(layers=LAYERS, exits=lambda target: Exits((ExitPoint(1, LensHead(target), 0.5),), probability, LIMITS), proposer="ngram")


def test_no_state_is_kept_of_a_sequence_that_gave_way() -> None:
    made = bench({2: 0.0})
    made.submit("a", PROMPTS[0], SamplingParams(max_tokens=9))
    for _ in range(3):
        made.engine.step()
    (sequence,) = made.scheduler.running
    assert [(waiting.position, waiting.layer) for waiting in sequence.unfilled] == [(5, 2), (6, 2)]
    assert all(torch.isfinite(waiting.hidden).all() for waiting in sequence.unfilled)
    sequence.forget()
    assert not sequence.unfilled
