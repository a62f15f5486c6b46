"""Speculation switched under running sequences: at the next step, with the same tokens, and as good as before afterwards."""

from __future__ import annotations

import pytest
import torch

from builder.decoding.params import SamplingParams
from builder.runtime.switches import Switches
from tests.unit.runtime.harness import Bench, plain_greedy

torch.set_num_threads(1)
OFF, ON = Switches(speculation=False), Switches()
LONG = SamplingParams(max_tokens=57)


class Rounds:
    """(drafted, accepted) of every round."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int]] = []

    def round_done(self, drafted: int, accepted: int) -> None:
        self.rounds.append((drafted, accepted))

    def tokens_emitted(self, *args: object) -> None: ...
    def first_token(self, *args: object) -> None: ...
    def finished(self, *args: object) -> None: ...
    def pass_done(self, *args: object) -> None: ...


def step(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.engine.step()
        bench.audit()


@pytest.mark.parametrize("proposer", ["draft_model", "ngram", "hybrid"])
@pytest.mark.parametrize("shared_kv", [True, False])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_switching_in_the_middle_changes_no_token(proposer: str, shared_kv: bool, noise: float) -> None:
    bench = Bench(proposer=proposer, shared_kv=shared_kv, noise=noise, max_draft_tokens=3)
    bench.submit("a", (1, 2, 3), LONG)
    for switches in (ON, OFF, ON, OFF, ON):
        bench.engine.set_switches(switches)
        step(bench, 3)
    bench.run(audit=True)
    assert bench.tokens("a") == plain_greedy((1, 2, 3), 57)


def test_a_running_sequence_stops_drafting_at_the_next_step() -> None:
    heard = Rounds()
    bench = Bench(proposer="draft_model", observer=heard, max_draft_tokens=3)
    bench.submit("a", (1, 2, 3), LONG)
    step(bench, 4)
    assert heard.rounds
    bench.engine.set_switches(OFF)
    heard.rounds.clear()
    draft_passes = len(bench.draft.passes)
    step(bench, 5)
    assert heard.rounds == []
    assert len(bench.draft.passes) == draft_passes
    bench.run(audit=True)
    stats = bench.last("a").stats
    assert stats is not None
    assert (stats.optimisation, stats.state) == ("speculative", "plain")


@pytest.mark.parametrize("shared_kv", [True, False])
def test_acceptance_of_the_same_sequence_returns_after_the_switch(shared_kv: bool) -> None:
    heard = Rounds()
    bench = Bench(proposer="draft_model", noise=0.0, shared_kv=shared_kv, observer=heard, max_draft_tokens=3)
    if not shared_kv:  # the toy draft with a cache of its own has one layer: make it the target's twin, in its own cache
        bench.engine._decoder._drafter._runner = twin = type(bench.target)(11)
        twin.allocate_cache(bench.settings.num_blocks, bench.settings.block_size)
    bench.submit("a", (1, 2, 3), LONG)
    for _ in range(4):
        bench.engine.step()
    before = list(heard.rounds)
    bench.engine.set_switches(OFF)
    for _ in range(10):
        bench.engine.step()
    heard.rounds.clear()
    bench.engine.set_switches(ON)
    for _ in range(4):
        bench.engine.step()
    assert before
    assert len(heard.rounds) == 4
    assert {*before, *heard.rounds} == {(3, 3)}  # a twin is always right, unless its cache is stale


def test_a_tenant_is_switched_alone() -> None:
    bench = Bench(proposer="draft_model", max_draft_tokens=3)
    bench.engine.set_switches(Switches(tenant_speculation={"search": False}))
    for tenant in ("search", "support"):
        bench.submit(tenant, (1, 2, 3), LONG, tenant=tenant)
    bench.run(audit=True)
    search, support = bench.last("search").stats, bench.last("support").stats
    assert search is not None
    assert support is not None
    assert (search.optimisation, search.state) == ("plain", "plain")
    assert (support.optimisation, support.state) == ("speculative", "speculating")


def test_a_request_turns_off_but_never_on() -> None:
    bench = Bench(proposer="draft_model", max_draft_tokens=3)
    bench.submit("declines", (1, 2, 3), LONG, speculation=False)
    bench.run()
    bench.engine.set_switches(OFF)
    bench.submit("insists", (1, 2, 3), LONG, speculation=True)
    bench.run()
    for name in ("declines", "insists"):
        stats = bench.last(name).stats
        assert stats is not None
        assert (stats.optimisation, stats.state, stats.num_draft_tokens) == ("plain", "plain", 0)


def test_an_engine_without_a_proposer_is_never_speculating() -> None:
    bench = Bench(proposer="none")
    bench.submit("a", (1, 2, 3), LONG)
    bench.run()
    assert bench.last("a").stats.state == "plain"  # type: ignore[union-attr]


def cached_tokens(bench: Bench, name: str, tenant: str) -> int:
    bench.submit(name, (1, 2, 3, 4, 5, 6, 7, 8, 9), SamplingParams(max_tokens=4), tenant=tenant)
    bench.run(audit=True)
    usage = bench.last(name).usage
    assert usage is not None
    assert bench.tokens(name) == plain_greedy((1, 2, 3, 4, 5, 6, 7, 8, 9), 4)
    return usage.cached_tokens


def test_a_tenant_without_the_prefix_cache_takes_nothing_from_it_and_leaves_nothing_there() -> None:
    bench = Bench(proposer="draft_model")
    off = Switches(prefix_cache=True, tenant_prefix_cache={"search": False})
    bench.engine.set_switches(off)
    assert cached_tokens(bench, "a", "search") == 0
    assert cached_tokens(bench, "b", "support") == 0  # a has left nothing
    assert cached_tokens(bench, "c", "support") == 8
    assert cached_tokens(bench, "d", "search") == 0
    bench.engine.set_switches(Switches(prefix_cache=False))
    assert cached_tokens(bench, "e", "support") == 0
    bench.engine.set_switches(ON)
    assert cached_tokens(bench, "f", "search") == 8  # what c has left is still there
