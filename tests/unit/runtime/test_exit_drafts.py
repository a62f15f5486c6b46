"""Drafts by the target's first layers: what they ran is not run again, and what is not drafted still decodes."""

from __future__ import annotations

import pytest

from builder.decoding.params import SamplingParams
from builder.decoding.proposers import Draft
from builder.errors import EngineError
from builder.runtime.engine import Engine
from builder.runtime.settings import EngineSettings
from tests.unit.runtime.harness import Bench, plain_greedy
from tests.unit.toy_runner import ToyRunner

LAYERS, PROMPT = 4, (3, 1, 4, 1, 5)


def bench(**settings: object) -> Bench:
    return Bench(layers=LAYERS, proposer="early_exit", max_draft_tokens=3, adaptive=False, **settings)


def layer_rows(made: Bench) -> list[int]:
    """Rows times layers of each step from now on, counted where the target runs them."""
    counted: list[int] = []
    layers = made.target.layers

    def count(hidden, rows, start, stop):  # type: ignore[no-untyped-def]
        counted.append(len(hidden) * (stop - start))
        return layers(hidden, rows, start, stop)

    made.target.layers = count  # type: ignore[method-assign]
    return counted


@pytest.mark.parametrize("sure", [0.0, 0.3, 0.5, 1.1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_drafted_token_runs_through_every_layer_once(sure: float, temperature: float) -> None:
    made = bench(sure=sure)
    made.submit("a", PROMPT, SamplingParams(max_tokens=30, temperature=temperature, seed=None if temperature == 0.0 else 5))
    made.engine.step()
    counted = layer_rows(made)
    rounds = 1
    while made.engine.step():
        rounds += 1
    stats = made.last("a").stats
    assert stats is not None
    assert sum(counted) == LAYERS * (stats.num_draft_tokens + rounds)
    assert (stats.num_draft_tokens > 0) == (sure < 1)
    if not temperature:
        assert made.tokens("a") == plain_greedy(PROMPT, 30, layers=LAYERS)


def test_prompts_arrive_beside_drafts_and_change_no_token() -> None:
    made = bench(max_num_tokens=8)
    prompts = [PROMPT, (2, 7, 1, 8, 2, 8, 1, 8, 2, 8), (4,)]
    for name, prompt in enumerate(prompts):
        made.submit(str(name), prompt, SamplingParams(max_tokens=18))
        for _ in range(3):
            made.engine.step()
            made.audit()
    made.run(audit=True)
    assert [made.tokens(str(name)) for name in range(3)] == [plain_greedy(prompt, 18, layers=LAYERS) for prompt in prompts]


def test_a_request_without_speculation_runs_plainly_beside_one_that_is_drafted_for() -> None:
    made = bench()
    made.submit("plain", PROMPT, SamplingParams(max_tokens=18), speculation=False)
    made.submit("drafted", PROMPT, SamplingParams(max_tokens=18))
    made.run(audit=True)
    plain, drafted = made.last("plain").stats, made.last("drafted").stats
    assert plain is not None and drafted is not None
    assert (plain.num_draft_tokens, plain.optimisation, drafted.optimisation) == (0, "plain", "speculative")
    assert made.tokens("plain") == made.tokens("drafted") == plain_greedy(PROMPT, 18, layers=LAYERS)


def test_an_exit_proposer_without_an_exit_head_is_refused() -> None:
    target = ToyRunner()
    target.allocate_cache(8, 4)
    with pytest.raises(EngineError, match="needs an exit head"):
        Engine(target, None, EngineSettings(num_blocks=8, block_size=4, proposer="early_exit"), eos_token_ids=frozenset())


@pytest.mark.parametrize(("proposer", "share"), [("early_exit", 1 / 3), ("draft_model", 0.0)])
def test_the_first_of_an_exits_passes_counts_as_the_targets(proposer: str, share: float) -> None:
    made = Bench(layers=LAYERS, proposer=proposer)
    assert made.engine._decoder.share_ahead([Draft([1, 2]), Draft()]) == share
