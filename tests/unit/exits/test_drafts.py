"""Drafts by an exit in the kernels: the same tokens and states as step by step, and the target's own answers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from builder.align.staging import Parts
from builder.compile.torch_aot.folder import read_info
from builder.compile.torch_aot.library import LIBRARY
from builder.compile.torch_aot.unpacking import read_tensors, unpack_dense
from builder.decoding.exits.confidence import probability
from builder.decoding.exits.rule import ExitLimits
from builder.decoding.params import SamplingParams
from builder.errors import EngineError
from builder.exits.drafts import read_costs
from builder.exits.head import LearnableHead
from builder.runtime.batch import block_tables, ragged
from builder.runtime.engine import Engine
from builder.runtime.exits import ExitPoint, Exits
from builder.runtime.request import DecodeStats, Output, Request
from builder.runtime.runner import GreedyRunner
from builder.runtime.runners.exit_head import TorchAotExitHead, load_exit_head
from builder.runtime.runners.torch_aot import TorchAotRunner, load_runner
from builder.runtime.settings import EngineSettings

KEPT, LAYER, BLOCKS = torch.arange(0, 320, 3), 2, 64


class StepByStep:
    """A runner without its short cuts."""

    def __init__(self, runner: TorchAotRunner) -> None:
        self.config = runner.config
        self.allocate_cache, self.cache_bytes_per_block = runner.allocate_cache, runner.cache_bytes_per_block
        self.embed, self.layers, self.head = runner.embed, runner.layers, runner.head


@pytest.fixture(scope="module")
def target(parts: Parts) -> TorchAotRunner:
    runner = load_runner(parts.target, parts.kernels / LIBRARY, max_seq_len=128, threads=1)
    runner.allocate_cache(BLOCKS, 16)
    return runner


@pytest.fixture(scope="module")
def heads(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors, info = read_tensors(parts.target), read_info(parts.target)
    rows = unpack_dense(tensors["head.weight"])[KEPT].float()
    head = LearnableHead(tensors["norm"], rows, 32, info.model.rms_norm_eps, seed=0)
    with torch.no_grad():
        head.another.mul_(0.0)
        for parameter in (head.matrix, head.down):
            parameter.normal_(0.0, 0.05, generator=torch.Generator().manual_seed(1))
    folder = tmp_path_factory.mktemp("heads")
    head.write(folder / str(LAYER), info.model, KEPT, "fingerprint")
    return folder


@pytest.fixture(scope="module")
def head(parts: Parts, heads: Path) -> TorchAotExitHead:
    return load_exit_head(heads / str(LAYER), parts.kernels / LIBRARY, threads=1, cpus=(), instruction_set="auto")


def chances(target: TorchAotRunner, head: TorchAotExitHead) -> torch.Tensor:
    rows, _ = ragged([(0, 0, list(range(0, 120)))], block_tables([range(8)]))
    return head.speak(target.layers(target.embed(rows), rows, 0, LAYER))[1]


def test_a_draft_in_one_call_equals_one_made_step_by_step_and_ends_where_the_head_is_unsure(
    target: TorchAotRunner, head: TorchAotExitHead
) -> None:
    seen = chances(target, head)
    threshold = float(seen[seen > 0].quantile(0.3))
    starts, lengths = list(range(5, 45)), [place % 5 for place in range(40)]
    tables = block_tables([[place] for place in range(40)])
    rows, _ = ragged([(place, 0, [token]) for place, token in enumerate(starts)], tables)
    drafted, states = target.draft_to_exit(rows, torch.tensor(lengths, dtype=torch.int32), ExitPoint(LAYER, head, threshold))
    assert drafted.shape == (40, 4) and states.shape == (5, 40, 64)
    ends = set()
    for place, (token, limit) in enumerate(zip(starts, lengths, strict=True)):
        found: list[int] = []
        while True:
            one, _ = ragged([(0, len(found), [token])], tables[place : place + 1])
            state = target.layers(target.embed(one), one, 0, LAYER)
            assert torch.equal(states[len(found), place], state[0])
            logits, chance = head.speak(state)
            if len(found) == limit or not (0 < float(chance[0]) >= threshold):
                break
            token = int(logits[0].argmax())
            assert token in KEPT
            found.append(token)
        ends.add(len(found) - limit)
        assert drafted[place].tolist() == found + [-1] * (4 - len(found))
    assert 0 in ends and min(ends) < 0, "the head never had to decide"


@pytest.mark.parametrize(
    "sampling", [SamplingParams(max_tokens=40, ignore_eos=True), SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=3)]
)
def test_answers_are_the_targets_with_and_without_the_short_cut(
    target: TorchAotRunner, head: TorchAotExitHead, sampling: SamplingParams
) -> None:
    seen = chances(target, head)
    point = ExitPoint(LAYER, head, float(seen[seen > 0].quantile(0.3)))
    assert isinstance(target, GreedyRunner) and not isinstance(StepByStep(target), GreedyRunner)

    def run(runner: TorchAotRunner | StepByStep, proposer: str) -> tuple[list[list[int]], list[DecodeStats]]:
        settings = EngineSettings(max_seq_len=128, num_blocks=BLOCKS, max_draft_tokens=3, proposer=proposer, adaptive=False)
        engine = Engine(runner, None, settings, eos_token_ids=frozenset(), draft_exit=point)
        outputs: dict[str, list[Output]] = {}
        for name in "abcd":
            engine.submit(Request(name, (ord(name), 7, 9), sampling), outputs.setdefault(name, []).append)
        while engine.step():
            pass
        tokens = [[token for output in found for token in output.token_ids] for found in outputs.values()]
        return tokens, [found[-1].stats for found in outputs.values() if found[-1].stats is not None]

    plain, _ = run(target, "none")
    tokens, stats = run(target, "early_exit")
    slow, slow_stats = run(StepByStep(target), "early_exit")
    assert sum(found.num_draft_tokens for found in stats) > 0
    assert [found.acceptance_histogram for found in stats] == [found.acceptance_histogram for found in slow_stats]
    assert tokens == slow
    if sampling.greedy:
        assert tokens == plain


@pytest.mark.parametrize("max_pending", [1, 3])
def test_tokens_leave_alike_with_and_without_the_short_cut(target: TorchAotRunner, head: TorchAotExitHead, max_pending: int) -> None:
    seen = chances(target, head)
    low, high = (float(seen[seen > 0].quantile(share)) for share in (0.5, 0.8))
    exits = Exits((ExitPoint(1, head, high), ExitPoint(LAYER, head, low)), probability, ExitLimits(max_pending))

    def run(runner: TorchAotRunner | StepByStep) -> tuple[list[list[int]], list[DecodeStats]]:
        settings = EngineSettings(max_seq_len=128, num_blocks=BLOCKS, proposer="none")
        engine = Engine(runner, None, settings, eos_token_ids=frozenset(), exits=exits)
        outputs: dict[str, list[Output]] = {}
        for name in "abcdef":
            sampling = SamplingParams(max_tokens=40, ignore_eos=True)
            engine.submit(Request(name, (ord(name), 7, 9), sampling), outputs.setdefault(name, []).append)
            engine.step()
        while engine.step():
            pass
        tokens = [[token for output in found for token in output.token_ids] for found in outputs.values()]
        return tokens, [found[-1].stats for found in outputs.values() if found[-1].stats is not None]

    (tokens, stats), (slow, slow_stats) = run(target), run(StepByStep(target))
    assert tokens == slow
    for one, other in zip(stats, slow_stats, strict=True):
        assert (one.exit_layers, one.pending_fills) == (other.exit_layers, other.pending_fills)
    layers: Counter[int] = sum((Counter(found.exit_layers) for found in stats), Counter())
    assert layers[1] and layers[LAYER] and layers[4] and sum(found.pending_fills for found in stats)


def test_a_head_of_another_kind_is_refused(target: TorchAotRunner) -> None:
    class Lens:
        pass

    rows, _ = ragged([(0, 0, [1])], block_tables([[0]]))
    with pytest.raises(EngineError, match="not compiled"):
        target.draft_to_exit(rows, torch.tensor([1], dtype=torch.int32), ExitPoint(LAYER, Lens(), 0.5))  # type: ignore[arg-type]


def test_costs_are_shares_of_the_weights_that_a_pass_reads(parts: Parts, heads: Path) -> None:
    one, two = read_costs(parts.target, heads, [LAYER])[0], read_costs(parts.target, heads, [LAYER])[0]
    assert one == two
    config = read_info(parts.target).model
    layer = 2 * (config.hidden_size * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)  # bfloat16: query, key and value
    layer += 2 * (config.num_heads * config.head_dim * config.hidden_size + 3 * config.hidden_size * config.intermediate_size)
    head = 2 * config.vocab_size * config.hidden_size
    assert one.layers == pytest.approx(LAYER * layer / (config.num_layers * layer + head), rel=0.1)
    assert 0 < one.head < one.layers
