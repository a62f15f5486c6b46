"""Engines with a prefix cache: the same tokens as without, less prefill, and blocks only of what both models verified."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.decoding import proposers
from builder.decoding.params import SamplingParams
from builder.runtime import prefix_cache
from builder.runtime.engine import Engine
from builder.runtime.request import Cancellation, FinishReason
from builder.runtime.scheduler import Scheduler
from tests.unit.runtime.harness import Bench, plain_greedy

torch.set_num_threads(1)
OPENINGS = [(), (1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 8, 7, 6, 5, 4)]
KEYS = {"blake2b": prefix_cache.block_key, "constant": lambda *_: b"", "tokens": lambda _parent, token_ids, _isolation: bytes(token_ids)}
SIX = SamplingParams(max_tokens=6)

one = st.fixed_dictionaries(
    {
        "prompt": st.tuples(st.sampled_from(OPENINGS), st.lists(st.integers(0, 2), min_size=1, max_size=5)).map(lambda p: (*p[0], *p[1])),
        "max_tokens": st.integers(1, 10),
        "at": st.integers(0, 16),
        "cancel": st.one_of(st.none(), st.none(), st.none(), st.integers(0, 20)),
        "speculation": st.sampled_from([True, True, True, False]),
        "tenant": st.sampled_from(["search", "support"]),
    }
)


@settings(max_examples=40, deadline=None)
@given(
    plan=st.lists(one, min_size=2, max_size=7),
    proposer=st.sampled_from(sorted(proposers.ENTRIES)),
    shared_kv=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "prefix_caching": st.sampled_from([True, True, True, False]),
            "prefix_isolation": st.sampled_from(["none", "tenant"]),
            "max_draft_tokens": st.integers(1, 5),
            "max_batch_size": st.integers(1, 5),
            "block_size": st.integers(1, 4),
            "max_num_tokens": st.integers(6, 24),
        }
    ),
    positions=st.integers(28, 60),
    key=st.sampled_from(["blake2b", "blake2b", "constant", "tokens"]),
)
def test_common_prefixes_change_no_token(  # type: ignore[no-untyped-def]
    plan, proposer: str, shared_kv: bool, options, positions: int, key: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_cache, "block_key", KEYS[key])
        bench = Bench(proposer=proposer, shared_kv=shared_kv, num_blocks=positions // options["block_size"], **options)
        busy, step = True, 0
        while busy or step <= 21:
            for name, wish in enumerate(plan):
                if wish["at"] == step:
                    fields = {"speculation": wish["speculation"], "tenant": wish["tenant"]}
                    bench.submit(str(name), wish["prompt"], SamplingParams(max_tokens=wish["max_tokens"]), **fields)
                if wish["cancel"] == step:
                    bench.engine.cancel(str(name), Cancellation.CLIENT)
            busy = bench.engine.step()
            bench.audit()
            step += 1
            assert step < 600, "somebody starves"
    for name, wish in enumerate(plan):
        expected, found, last = plain_greedy(wish["prompt"], wish["max_tokens"]), bench.tokens(str(name)), bench.last(str(name))
        assert last.finish_reason is (FinishReason.LENGTH if len(found) == len(expected) else FinishReason.CANCELLED)
        assert found == expected[: len(found)]
        assert last.usage is not None and 0 <= last.usage.cached_tokens < len(wish["prompt"])
        assert options["prefix_caching"] or last.usage.cached_tokens == 0
    assert bench.scheduler.blocks.num_used == 0


def cached_tokens(bench: Bench, name: str, prompt: tuple[int, ...], **fields: object) -> int:
    """Of a request that runs alone; its tokens are checked."""
    bench.submit(name, prompt, SIX, **fields)
    bench.run(audit=True)
    assert bench.tokens(name) == plain_greedy(prompt, 6)
    usage = bench.last(name).usage
    assert usage is not None
    return usage.cached_tokens


@pytest.mark.parametrize("shared_kv", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("proposer", sorted(proposers.ENTRIES))
def test_a_second_prompt_runs_only_what_is_new(proposer: str, shared_kv: bool) -> None:
    bench = Bench(proposer=proposer, shared_kv=shared_kv)
    prompt = (3, 1, 4, 1, 5, 9, 2, 6, 5)
    assert cached_tokens(bench, "cold", prompt) == 0
    bench.target.passes.clear()
    bench.draft.passes.clear()
    assert cached_tokens(bench, "warm", (*prompt[:8], 7, 7)) == 8
    assert bench.target.passes[0] == 2
    if bench.engine._decoder.own_draft_cache:
        assert max(bench.draft.passes) <= 6, "the draft takes the prefix too"


def test_a_prompt_that_is_cached_whole_still_runs_its_last_token() -> None:
    bench = Bench(proposer="none", block_size=4)
    prompt = (3, 1, 4, 1, 5, 9, 2, 6)
    assert [cached_tokens(bench, name, prompt) for name in "ab"] == [0, 4]
    assert cached_tokens(bench, "c", (*prompt, 5)) == 8


def test_an_answer_joins_the_cache_and_serves_the_next_turn() -> None:
    bench = Bench(proposer="draft_model", block_size=4, max_draft_tokens=3)
    assert cached_tokens(bench, "first", (1, 2, 3)) == 0
    talk = (1, 2, 3, *bench.tokens("first"), 5)
    assert cached_tokens(bench, "second", talk) == 8  # of 9 tokens, the ninth was emitted and never run


def test_a_prompt_being_served_is_shared_already() -> None:
    bench = Bench(proposer="none", block_size=4)
    prompt = (3, 1, 4, 1, 5, 9, 2, 6, 5)
    bench.submit("a", prompt, SIX)
    bench.engine.step()
    bench.submit("b", prompt, SIX)
    bench.engine.step()
    bench.audit()
    assert max(bench.scheduler.blocks._references) == 2
    bench.run(audit=True)
    assert bench.tokens("a") == bench.tokens("b") == plain_greedy(prompt, 6)
    assert bench.last("b").usage.cached_tokens == 8  # type: ignore[union-attr]


def test_tenants_share_a_prefix_only_where_the_settings_let_them() -> None:
    prompt = (3, 1, 4, 1, 5, 9)
    for isolation, expected in (("none", 4), ("tenant", 0)):
        bench = Bench(proposer="none", prefix_isolation=isolation)
        assert cached_tokens(bench, "a", prompt, tenant="search") == 0
        assert cached_tokens(bench, "b", prompt, tenant="support") == expected
        assert cached_tokens(bench, "c", prompt, tenant="support") == 4


def test_without_prefix_caching_nothing_is_kept() -> None:
    bench = Bench(proposer="none", prefix_caching=False)
    assert [cached_tokens(bench, name, (3, 1, 4, 1, 5, 9)) for name in "ab"] == [0, 0]
    assert bench.scheduler.blocks.num_free == bench.settings.num_blocks


def test_a_draft_with_its_own_cache_must_have_run_a_block_before_it_is_shared() -> None:
    bench = Bench(proposer="draft_model", shared_kv=False)
    prompt = (3, 1, 4, 1, 5, 9)
    assert cached_tokens(bench, "plain", prompt, speculation=False) == 0
    assert bench.scheduler.blocks.num_cached == 0
    assert cached_tokens(bench, "drafted", prompt) == 0
    assert cached_tokens(bench, "plain again", prompt, speculation=False) == 4


def test_tokens_recomputed_after_preemption_are_not_reported_as_cached() -> None:
    bench = Bench(proposer="none", max_batch_size=4, num_blocks=12, block_size=3)
    for place in range(4):
        bench.submit(str(place), (place, 1, 2, 3), SamplingParams(max_tokens=20))
    bench.run(audit=True)
    assert bench.scheduler.preemptions > 0
    assert [bench.last(str(place)).usage.cached_tokens for place in range(4)] == [0] * 4  # type: ignore[union-attr]


def test_after_a_failed_step_nothing_cached_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(proposer="none")
    prompt = (3, 1, 4, 1, 5, 9)
    cached_tokens(bench, "a", prompt)
    with monkeypatch.context() as patch:
        patch.setattr(bench.target, "head", lambda _: 1 / 0)
        bench.submit("b", prompt, SIX)
        bench.engine.step()
    assert bench.last("b").finish_reason is FinishReason.ERROR
    assert cached_tokens(bench, "c", prompt) == 0


@pytest.mark.parametrize("prompt", [(3, 1, 4, 1, 5, 9), (3, 1, 4, 1, 5)], ids=["two left to run", "one left to run"])
def test_a_seeded_answer_is_the_same_from_the_cache(prompt: tuple[int, ...]) -> None:
    for seed in range(20):
        bench = Bench(proposer="draft_model", sharpness=0.4)
        for name in ("cold", "warm"):
            bench.submit(name, prompt, SamplingParams(max_tokens=12, temperature=1.0, seed=seed))
            bench.run(audit=True)
        assert bench.last("warm").usage.cached_tokens == 4  # type: ignore[union-attr]
        assert bench.tokens("warm") == bench.tokens("cold")


def test_engines_of_the_same_runners_do_not_share_their_caches() -> None:
    bench = Bench(proposer="none")
    cached_tokens(bench, "a", (3, 1, 4, 1, 5, 9))
    bench.engine = Engine(bench.target, bench.draft, bench.settings, eos_token_ids=frozenset())
    assert cached_tokens(bench, "b", (3, 1, 4, 1, 5, 9)) == 0


def test_a_block_published_before_it_is_verified_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishes the emitted token that was never run."""

    def early(self, sequence):  # type: ignore[no-untyped-def]
        self.blocks.publish(sequence.blocks, sequence.token_ids, len(sequence.token_ids) // 2 * 2)

    monkeypatch.setattr(Scheduler, "_publish", early)
    bench = Bench(proposer="draft_model", noise=0.4, block_size=2)
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=20))
    with pytest.raises(AssertionError, match=r"cache is wrong|shared block is written"):
        bench.run(audit=True)
