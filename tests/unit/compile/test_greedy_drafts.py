"""Greedy drafts made in one call of the kernels: the same tokens, and the same account of the cache, as token by token."""

from __future__ import annotations

import pytest
import torch

from builder.decoding.params import SamplingParams
from builder.decoding.stopping import BINS, StopRule
from builder.runtime.engine import Engine
from builder.runtime.request import DecodeStats, Output, Request
from builder.runtime.runner import GreedyRunner, Rows
from builder.runtime.runners.torch_aot import TorchAotRunner
from builder.runtime.settings import EngineSettings
from tests.unit.compile.conftest import LoadTiny
from tests.unit.compile.passes import rows_of, run, run_in_chunks
from tests.unit.compile.test_kernels import SETS, skip_unless_here


class TokenByToken:
    """A runner without its short cut."""

    def __init__(self, runner: TorchAotRunner) -> None:
        self.config = runner.config
        self.allocate_cache, self.cache_bytes_per_block = runner.allocate_cache, runner.cache_bytes_per_block
        self.embed, self.layers, self.head = runner.embed, runner.layers, runner.head


def test_a_draft_in_one_call_equals_one_made_step_by_step(load_tiny: LoadTiny) -> None:
    _, runner = load_tiny("bfloat16")
    prompts, tables = ([5, 9, 3], [7], [1, 2, 3, 4, 5]), ([0, 1], [2, 3], [4, 5])
    expected = []
    for prompt, blocks, length in zip(prompts, tables, (4, 2, 3), strict=True):
        logits, drafted = run_in_chunks(runner, prompt, [len(prompt)], blocks)[-1:], []
        for step in range(length):
            drafted.append(int(logits.argmax()))
            logits = run(runner, rows_of([([drafted[-1]], len(prompt) + step, blocks)]))
        expected.append(drafted + [-1] * (4 - length))
    for prompt, blocks in zip(prompts, tables, strict=True):  # what each row continues, without its last token
        if len(prompt) > 1:
            run(runner, rows_of([(prompt[:-1], 0, blocks)]))
    rows = rows_of([(prompt[-1:], len(prompt) - 1, blocks) for prompt, blocks in zip(prompts, tables, strict=True)])
    assert runner.continue_greedily(rows, torch.tensor([4, 2, 3], dtype=torch.int32), None)[0].tolist() == expected


@pytest.mark.parametrize("least", [0.0, 0.3, 1.1])
@pytest.mark.parametrize("instruction_set", SETS)
def test_a_draft_ends_with_the_token_that_the_rule_ends_it_with(
    load_tiny: LoadTiny, instruction_sets: list[str], instruction_set: str, least: float
) -> None:
    skip_unless_here(instruction_set, instruction_sets)
    _, runner = load_tiny("int4", instruction_set, {"vocab_size": 330}, group_size=32)  # padded to 352
    rule = StopRule(tuple((place + 1) / BINS for place in range(BINS)), least)
    starts, longest = range(8), 6
    tables = [[start] for start in starts]
    rows = rows_of([([39 * start], 0, blocks) for start, blocks in zip(starts, tables, strict=True)])
    drafted, confidences = runner.continue_greedily(rows, torch.full((len(starts),), longest, dtype=torch.int32), rule)
    lengths = set()
    for start, blocks, tokens, sure in zip(starts, tables, drafted.tolist(), confidences.tolist(), strict=True):
        expected: list[int] = []
        seen: list[float] = []
        token = 39 * start
        while len(expected) < longest and not (expected and rule.ends(seen)):
            logits = run(runner, rows_of([([token], len(expected), blocks)]))[0]
            token = int(logits.argmax())
            expected.append(token)
            seen.append(float(logits.softmax(-1)[token]))
        lengths.add(len(expected))
        assert tokens == expected + [-1] * (longest - len(expected))
        assert sure[: len(seen)] == pytest.approx(seen, rel=1e-4)
    assert lengths == {0.0: {longest}, 1.1: {1}}.get(least, lengths)
    assert len(lengths) > 1 or least != 0.3, "the rule never had to decide"


def test_the_lowest_of_equal_tokens_is_drafted(load_tiny: LoadTiny) -> None:
    _, runner = load_tiny("float32")
    runner.share_embedding(torch.zeros(320, 64))  # all logits are equal then
    rows = Rows(*(torch.zeros(1, dtype=torch.int32) for _ in range(3)), torch.arange(8, dtype=torch.int32)[None])
    assert runner.continue_greedily(rows, torch.tensor([2], dtype=torch.int32), None)[0].tolist() == [[0, 0]]


def test_a_draft_that_would_leave_the_context_is_refused(load_tiny: LoadTiny) -> None:
    _, runner = load_tiny("bfloat16")
    with pytest.raises(RuntimeError, match="outside the context"):
        runner.continue_greedily(rows_of([([1], 126, list(range(8)))]), torch.tensor([3], dtype=torch.int32), None)


@pytest.mark.parametrize("shared", [True, False], ids=["the target's cache", "its own cache"])
def test_acceptance_is_the_same_with_and_without_the_short_cut(load_tiny: LoadTiny, shared: bool) -> None:
    _, target = load_tiny("bfloat16")
    _, draft = load_tiny("int4", group_size=32)
    assert isinstance(draft, GreedyRunner) and not isinstance(TokenByToken(draft), GreedyRunner)

    def stats(runner: TorchAotRunner | TokenByToken) -> list[DecodeStats]:
        target.allocate_cache(32, 16)
        draft.allocate_cache(32, 16)
        if shared:
            draft.share_cache(target)
        settings = EngineSettings(max_seq_len=128, num_blocks=32, max_draft_tokens=3, proposer="draft_model", shared_kv=shared)
        engine = Engine(target, runner, settings, eos_token_ids=frozenset())
        outputs: list[Output] = []
        for i in range(4):
            engine.submit(Request(str(i), tuple(range(3 + 5 * i, 12 + 7 * i)), SamplingParams(max_tokens=20 + i)), outputs.append)
        while engine.step():
            pass
        return [output.stats for output in sorted(outputs, key=lambda o: o.request_id) if output.stats is not None]

    def counts(found: list[DecodeStats]) -> list[tuple[int, int, int]]:
        return [(one.num_spec_steps, one.num_draft_tokens, one.num_accepted_draft_tokens) for one in found]

    quick, slow = counts(stats(draft)), counts(stats(TokenByToken(draft)))
    assert quick == slow
    assert sum(accepted for _, _, accepted in quick) > 0


@pytest.mark.parametrize("weights", ["bfloat16", "int4"])
def test_the_tokens_a_head_finds_by_itself_are_the_argmax_of_its_logits(load_tiny: LoadTiny, weights: str) -> None:
    _, runner = load_tiny(weights)
    rows = rows_of([(list(range(start, start + 20)), 0, [2 * start, 2 * start + 1]) for start in range(2)])
    hidden = runner.layers(runner.embed(rows), rows, 0, runner.config.num_layers)
    assert runner.greedy(hidden) == runner.head(hidden).argmax(-1).tolist()
