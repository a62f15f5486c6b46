"""A conversation longer than the context, under `attention_sink`: what it forgets, and that nothing else changes its tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.decoding import proposers
from builder.decoding.params import SamplingParams
from builder.errors import EngineError, RequestError
from builder.runtime import decoder
from builder.runtime.eviction import forgotten
from builder.runtime.request import FinishReason
from tests.unit.runtime.harness import Bench, Letters, plain_greedy

torch.set_num_threads(1)
CONTEXT, BLOCK = 24, 4
PROMPTS = [(1, 2, 3), (5, 6, 5, 6, 5), tuple(range(10)) * 2, tuple(range(7)) * 6]  # the last is longer than the context


def reference(prompt: tuple[int, ...], count: int) -> list[int]:
    """What the target says when every token comes from a whole pass over what is not forgotten."""
    ids, made = list(prompt), []
    for _ in range(count):
        if len(ids) >= CONTEXT:  # the first block and the latest of the rest, half a context together
            ids = ids[:BLOCK] + ids[-(CONTEXT // 2 - BLOCK) :]
        made += plain_greedy(tuple(ids), 1)
        ids.append(made[-1])
    return made


def sinking(**fields: object) -> Bench:
    return Bench(**{"max_seq_len": CONTEXT, "block_size": BLOCK, "eviction": "attention_sink"} | fields)  # type: ignore[arg-type]


def test_half_a_context_is_left_the_first_block_and_the_latest_tokens() -> None:
    ids = list(range(24))
    dropped = forgotten(24, CONTEXT, BLOCK)
    assert [token for token in ids if token not in dropped] == [0, 1, 2, 3, 16, 17, 18, 19, 20, 21, 22, 23]


@pytest.mark.parametrize("proposer", sorted(proposers.ENTRIES))
@pytest.mark.parametrize("shared_kv", [True, False], ids=["shared", "own"])
def test_answers_go_on_past_the_context_the_same_with_every_proposer(proposer: str, shared_kv: bool) -> None:
    bench = sinking(proposer=proposer, shared_kv=shared_kv, max_num_tokens=16)
    for name, prompt in enumerate(PROMPTS):
        bench.submit(str(name), prompt, SamplingParams(max_tokens=60))
    bench.run(audit=True)
    for name, prompt in enumerate(PROMPTS):
        assert bench.tokens(str(name)) == reference(prompt, 60)
        last = bench.last(str(name))
        assert last.finish_reason is FinishReason.LENGTH
        assert last.usage is not None
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(prompt), 60)
        assert last.stats is not None
        assert last.stats.evicted_tokens >= len(prompt) + 60 - CONTEXT
    assert bench.scheduler.blocks.num_used == 0


def test_what_fits_the_context_is_not_touched() -> None:
    bench = sinking(proposer="draft_model")
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=CONTEXT - 4))
    bench.run(audit=True)
    assert bench.tokens("a") == plain_greedy((1, 2, 3), CONTEXT - 4)
    stats = bench.last("a").stats
    assert stats is not None
    assert stats.evicted_tokens == 0


@settings(max_examples=15, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=50).map(tuple), min_size=1, max_size=5),
    proposer=st.sampled_from(sorted(proposers.ENTRIES)),
    batch=st.integers(1, 4),
    blocks=st.integers(CONTEXT // BLOCK, 14),
    rows=st.integers(6, 24),
)
def test_preemption_and_chunks_change_no_token_of_a_long_conversation(
    prompts: list[tuple[int, ...]], proposer: str, batch: int, blocks: int, rows: int
) -> None:
    bench = sinking(proposer=proposer, max_batch_size=batch, num_blocks=blocks, max_num_tokens=rows)
    for name, prompt in enumerate(prompts):
        bench.submit(str(name), prompt, SamplingParams(max_tokens=40))
    bench.run(audit=True)
    for name, prompt in enumerate(prompts):
        assert bench.tokens(str(name)) == reference(prompt, 40)


def test_no_random_number_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    uniforms = decoder.uniforms
    monkeypatch.setattr(decoder, "uniforms", lambda seed, place, count: (drawn.append(place), uniforms(seed, place, count))[1])
    bench = sinking(proposer="none")
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=60, temperature=1.0, seed=1))
    bench.run(audit=True)
    assert drawn == list(range(3, 63))


def test_several_answers_to_a_prompt_longer_than_the_context_run_beside_each_other() -> None:
    bench = sinking(proposer="draft_model")
    bench.submit("a", PROMPTS[-1], SamplingParams(max_tokens=30, temperature=1.0, seed=1, n=3))
    bench.engine.step()
    assert len(bench.scheduler.running) == 3
    bench.run(audit=True)
    assert len(bench.tokens("a")) == 90


def test_a_stop_string_is_found_behind_what_was_forgotten() -> None:
    expected = reference((1, 2, 3), 60)
    letters = "".join("abcdefghijk"[token] for token in expected)
    stop = letters[40:46]
    bench = sinking(proposer="draft_model", tokenizer=Letters())
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=60, stop=(stop,)))
    bench.run(audit=True)
    assert bench.last("a").finish_reason is FinishReason.STOP
    assert bench.tokens("a") == expected[: letters.index(stop) + len(stop)]


def test_without_attention_sink_a_long_prompt_is_refused() -> None:
    bench = sinking(eviction="recompute")
    with pytest.raises(RequestError, match="at most 23 fit"):
        bench.submit("a", PROMPTS[-1])


def test_a_context_of_less_than_four_blocks_is_refused() -> None:
    with pytest.raises(EngineError, match="four blocks"):
        sinking(max_seq_len=12)
    with pytest.raises(EngineError, match="the KV cache holds 12"):
        sinking(num_blocks=3)
