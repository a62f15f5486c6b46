"""Greedy speculative output is the plain output, token for token, whatever is proposed, cached, chunked, preempted or cancelled."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.decoding import proposers
from builder.decoding.params import SamplingParams
from builder.runtime import decoder
from builder.runtime.block_manager import BlockManager
from builder.runtime.request import Cancellation, FinishReason
from tests.unit.runtime.harness import Bench, plain_greedy

torch.set_num_threads(1)
PROPOSERS = sorted(proposers.ENTRIES)
PROMPTS = [(1, 2, 3), (4,), (5, 6, 5, 6, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9), (0, 0, 0, 0), (10, 9)]


@pytest.mark.parametrize(("proposer", "k"), [(name, k) for name in PROPOSERS for k in range(1, 6) if name != "none" or k == 1], ids=str)
@pytest.mark.parametrize("shared_kv", [True, False], ids=["shared", "own"])
def test_speculative_greedy_output_is_the_plain_output(proposer: str, shared_kv: bool, k: int) -> None:
    bench = Bench(proposer=proposer, shared_kv=shared_kv, max_draft_tokens=k, max_num_tokens=16)
    for batch in range(1, len(PROMPTS) + 1):
        for place, prompt in enumerate(PROMPTS[:batch]):
            bench.submit(f"{batch}-{place}", prompt, SamplingParams(max_tokens=10))
        bench.run(audit=batch == len(PROMPTS))
        for place, prompt in enumerate(PROMPTS[:batch]):
            assert bench.tokens(f"{batch}-{place}") == plain_greedy(prompt, 10)
    assert bench.scheduler.blocks.num_used == 0
    if proposer != "none":
        accepted = sum(output[-1].stats.num_accepted_draft_tokens for output in bench.outputs.values() if output[-1].stats)
        assert accepted > 0, "nothing was accepted, so nothing was tested"


@st.composite
def arrivals(draw: st.DrawFn) -> list[dict[str, object]]:
    prompt = st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple)
    one = st.fixed_dictionaries(
        {
            "prompt": prompt,
            "max_tokens": st.integers(1, 12),
            "at": st.integers(0, 12),
            "cancel": st.one_of(st.none(), st.none(), st.integers(0, 20)),
            "speculation": st.sampled_from([True, True, True, False]),
            "penalty": st.sampled_from([1.0, 1.0, 1.4]),
        }
    )
    return draw(st.lists(one, min_size=1, max_size=7))


@settings(max_examples=50, deadline=None)
@given(
    plan=arrivals(),
    proposer=st.sampled_from(PROPOSERS),
    shared_kv=st.booleans(),
    k=st.integers(1, 5),
    batch=st.integers(1, 6),
    block_size=st.integers(1, 4),
    positions=st.integers(28, 60),
    rows=st.integers(6, 24),
    noise=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_arrivals_cancels_chunks_and_a_tiny_cache_change_no_token(
    plan: list[dict[str, object]],
    proposer: str,
    shared_kv: bool,
    k: int,
    batch: int,
    block_size: int,
    positions: int,
    rows: int,
    noise: float,
) -> None:
    bench = Bench(
        proposer=proposer,
        shared_kv=shared_kv,
        max_draft_tokens=k,
        max_batch_size=batch,
        block_size=block_size,
        num_blocks=positions // block_size,
        max_num_tokens=rows,
        noise=noise,
    )
    busy, step = True, 0
    while busy or step <= 21:
        for name, wish in enumerate(plan):
            if wish["at"] == step:
                sampling = SamplingParams(max_tokens=wish["max_tokens"], repetition_penalty=wish["penalty"])  # type: ignore[arg-type]
                bench.submit(str(name), wish["prompt"], sampling, speculation=wish["speculation"])  # type: ignore[arg-type]
            if wish["cancel"] == step:
                bench.engine.cancel(str(name), Cancellation.CLIENT)
        busy = bench.engine.step()
        bench.audit()
        step += 1
        assert step < 600, "somebody starves"
    for name, wish in enumerate(plan):
        expected = plain_greedy(wish["prompt"], wish["max_tokens"], wish["penalty"])  # type: ignore[arg-type]
        found, last = bench.tokens(str(name)), bench.last(str(name))
        assert Counter(output.finish_reason for output in bench.outputs[str(name)])[None] == len(bench.outputs[str(name)]) - 1
        if last.finish_reason is FinishReason.CANCELLED:
            assert wish["cancel"] is not None
            assert found == expected[: len(found)]
        else:
            assert last.finish_reason is FinishReason.LENGTH
            assert found == expected[: positions // block_size * block_size - len(wish["prompt"])]  # type: ignore[arg-type]
        assert wish["speculation"] is not False or last.stats.num_draft_tokens == 0  # type: ignore[union-attr]
    assert bench.scheduler.blocks.num_used == 0
    assert max(bench.target.passes, default=0) <= rows
    assert max(bench.draft.passes, default=0) <= rows


@pytest.mark.parametrize("shared_kv", [True, False], ids=["shared", "own"])
def test_preemption_happens_and_changes_no_token(shared_kv: bool) -> None:
    bench = Bench(proposer="draft_model", shared_kv=shared_kv, max_batch_size=4, num_blocks=12, block_size=3, max_draft_tokens=3)
    for place in range(4):
        bench.submit(str(place), (place, 1, 2), SamplingParams(max_tokens=20))
    bench.run(audit=True)
    assert bench.scheduler.preemptions > 0
    assert [bench.tokens(str(place)) for place in range(4)] == [plain_greedy((place, 1, 2), 20) for place in range(4)]
    assert bench.scheduler.blocks.num_used == 0


@pytest.mark.parametrize("shared_kv", [True, False], ids=["shared", "own"])
def test_a_draft_that_is_the_target_is_accepted_whole_round_after_round(shared_kv: bool) -> None:
    bench = Bench(proposer="draft_model", shared_kv=shared_kv, noise=0.0, max_draft_tokens=3)
    if not shared_kv:  # the draft's last drafted token was never run: the next round must catch up on it
        bench.draft.layer, bench.draft.config = bench.target.layer, bench.target.config
        bench.draft.allocate_cache(bench.settings.num_blocks, bench.settings.block_size)
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=33))
    bench.run(audit=True)
    stats = bench.last("a").stats
    assert stats is not None
    assert stats.acceptance_histogram == (0, 0, 0, 8)
    assert stats.mean_acceptance_length == 4.0
    assert stats.draft_acceptance_rate == 1.0


def test_a_draft_with_its_own_cache_catches_up_in_chunks_and_nobody_waits_for_it() -> None:
    bench = Bench(proposer="draft_model", shared_kv=False, max_num_tokens=6, max_seq_len=64)
    bench.submit("short", (1, 2), SamplingParams(max_tokens=20))
    bench.submit("long", (1, 2, 3) * 10, SamplingParams(max_tokens=20))
    bench.run(audit=True)
    assert bench.tokens("short") == plain_greedy((1, 2), 20)
    assert bench.tokens("long") == plain_greedy((1, 2, 3) * 10, 20)
    assert max(bench.draft.passes) <= 6
    stats = bench.last("long").stats
    assert stats is not None and stats.num_draft_tokens > 0


def test_a_shared_cache_needs_no_draft_prefill() -> None:
    bench = Bench(proposer="draft_model", shared_kv=True, max_draft_tokens=3)
    bench.submit("a", (1, 2, 3) * 5, SamplingParams(max_tokens=10))
    bench.run(audit=True)
    assert set(bench.draft.passes) == {1}


def test_draft_steps_are_batched_and_one_target_pass_serves_everybody() -> None:
    bench = Bench(proposer="draft_model", max_draft_tokens=2, max_num_tokens=64)
    for place in range(3):
        bench.submit(str(place), (place, 1), SamplingParams(max_tokens=12))
    bench.engine.step()
    bench.engine.step()
    assert bench.draft.passes == [3, 3]
    assert bench.target.passes == [6, 9]
    assert bench.target.head_rows == [3, 9]


def test_a_prompt_is_prefilled_in_chunks_beside_decoding() -> None:
    bench = Bench(proposer="none", max_num_tokens=8)
    bench.submit("a", (1, 2), SamplingParams(max_tokens=8))
    bench.engine.step()
    bench.submit("b", range(10), SamplingParams(max_tokens=3))
    bench.submit("c", (3, 1, 2), SamplingParams(max_tokens=3))
    bench.run(audit=True)
    assert bench.target.passes[:4] == [2, 8, 7, 3]  # 1+6+1, then 1+4+2, then three decode
    assert bench.tokens("b") == plain_greedy(tuple(range(10)), 3)
    assert bench.tokens("c") == plain_greedy((3, 1, 2), 3)


def test_drafts_give_way_when_blocks_run_out_instead_of_preempting() -> None:
    bench = Bench(proposer="draft_model", noise=0.0, max_batch_size=2, num_blocks=5, block_size=4, max_draft_tokens=5)
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=6))
    bench.submit("b", (2, 2, 3), SamplingParams(max_tokens=6))
    bench.run(audit=True)
    assert bench.scheduler.preemptions == 0
    assert bench.tokens("a") == plain_greedy((1, 2, 3), 6)


def test_a_draft_cache_that_is_not_trimmed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = decoder._decide

    def untrimmed(sequence, *rest):  # type: ignore[no-untyped-def]
        kept = sequence.draft_computed
        verdict = decide(sequence, *rest)
        sequence.draft_computed = kept
        return verdict

    monkeypatch.setattr(decoder, "_decide", untrimmed)
    bench = Bench(proposer="draft_model", shared_kv=False, noise=0.4)
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=30))
    with pytest.raises(AssertionError, match="cache is wrong"):
        bench.run(audit=True)


def test_a_rejected_token_kept_in_the_target_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verify group starts one row late after a rejection, as if the rejected token's key were the kept token's."""
    group_rows = decoder._group_rows

    def late(place, sequence, draft):  # type: ignore[no-untyped-def]
        place, start, ids = group_rows(place, sequence, draft)
        rejected = sequence.answer.tally.drafted > 0 and len(ids) > 1
        return (place, start, [sequence.token_ids[-2], *ids[1:]]) if rejected else (place, start, ids)

    monkeypatch.setattr(decoder, "_group_rows", late)
    bench = Bench(proposer="draft_model", noise=0.4)
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=30))
    with pytest.raises(AssertionError, match="cache is wrong"):
        bench.run(audit=True)
    again = Bench(proposer="draft_model", noise=0.4)
    again.submit("a", (1, 2, 3), SamplingParams(max_tokens=30))
    again.run()
    assert again.tokens("a") != plain_greedy((1, 2, 3), 30)


def test_blocks_trimmed_too_far_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = BlockManager.trim
    monkeypatch.setattr(BlockManager, "trim", lambda self, blocks, positions: trim(self, blocks, max(0, positions - 5)))
    bench = Bench(proposer="draft_model", noise=0.4)
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=30))
    with pytest.raises(AssertionError, match="have no block"):
        bench.run(audit=True)
