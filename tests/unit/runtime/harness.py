"""An engine over toy runners, a reference that knows no cache, and an oracle that looks into the cache after each step."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable

import torch

from builder.decoding.exits.confidence import Measure, probability
from builder.decoding.filters import penalise
from builder.decoding.params import SamplingParams
from builder.runtime.engine import Engine
from builder.runtime.exits import ExitPoint, Exits
from builder.runtime.observer import Observer
from builder.runtime.prefix_cache import Entry
from builder.runtime.request import Output, Request
from builder.runtime.runner import Rows
from builder.runtime.sequence import Sequence
from builder.runtime.settings import EngineSettings
from tests.unit.toy_runner import ToyCache, ToyRunner, toy_pair


def tokens(outputs: Iterable[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def whole_pass(runner: ToyRunner, ids: list[int], layers: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [tokens, V] and keys and values [layers, 2, tokens, hidden] of one pass over all of ids, through all layers or the first
    few, in a cache of its own."""
    kept = runner.cache, runner.passes, runner.head_rows, runner.layers_run
    runner.cache, runner.passes, runner.head_rows = ToyCache(), [], []
    runner.allocate_cache(1, len(ids))
    zeros = torch.zeros(len(ids), dtype=torch.int32)
    rows = Rows(torch.tensor(ids, dtype=torch.int32), torch.arange(len(ids), dtype=torch.int32), zeros, zeros[:1, None])
    logits = runner.head(runner.layers(runner.embed(rows), rows, 0, layers or runner.config.num_layers))
    own = runner.cache.keys_values
    runner.cache, runner.passes, runner.head_rows, runner.layers_run = kept
    return logits, own


@functools.lru_cache(maxsize=4096)
def plain_greedy(prompt: tuple[int, ...], count: int, penalty: float = 1.0, seed: int = 0, vocab: int = 11, layers: int = 2) -> list[int]:
    """What the target says, every token from a whole pass over everything before it."""
    runner = ToyRunner(vocab, seed=seed, layers=layers)
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(penalise(whole_pass(runner, ids)[0][-1:], penalty, ids).argmax()))
    return ids[len(prompt) :]


def text_of(entry: Entry) -> tuple[list[int], list[int]]:
    """Blocks and tokens of a cached block and all in front of it."""
    blocks, ids = text_of(entry.parent) if entry.parent is not None else ([], [])
    return [*blocks, entry.block], [*ids, *entry.token_ids]


class Pieces(tuple[bytes, ...]):
    strips_space = False


class Letters:
    """Token n is the n-th letter."""

    pieces = Pieces(bytes([ord("a") + n]) for n in range(11))


class LensHead:
    """The target's own head on an inner state."""

    def __init__(self, runner: ToyRunner) -> None:
        self._output = runner.output

    def say(self, hidden: torch.Tensor, measure: Measure) -> tuple[list[int], list[float]]:
        logits = hidden @ self._output
        return logits.argmax(-1).tolist(), measure(logits).tolist()

    def speak(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = hidden @ self._output
        return logits, probability(logits)


class Bench:
    """An engine stepped by hand. `audit` checks both caches against whole passes and spoils everything else in them."""

    def __init__(
        self,
        *,
        noise: float = 0.1,
        vocab: int = 11,
        sharpness: float = 3.0,
        eos: frozenset[int] = frozenset(),
        tokenizer: object = None,
        observer: Observer | None = None,
        layers: int = 2,
        exits: Callable[[ToyRunner], Exits] | None = None,
        sure: float = 0.3,  # the least confidence of a draft by the first layer
        **settings: object,
    ) -> None:
        defaults: dict[str, object] = {"max_batch_size": 6, "max_seq_len": 64, "max_num_tokens": 64, "block_size": 4, "num_blocks": 96}
        self.settings = EngineSettings(**(defaults | settings))  # type: ignore[arg-type]
        shared = self.settings.shared_kv
        self.target, self.draft = toy_pair(shared_kv=shared, noise=noise, vocab=vocab, sharpness=sharpness, layers=layers)
        for runner in (self.target,) if shared else (self.target, self.draft):
            runner.allocate_cache(self.settings.num_blocks, self.settings.block_size)
        self.engine = Engine(
            self.target,
            self.draft,
            self.settings,
            eos_token_ids=eos,
            tokenizer=tokenizer,  # type: ignore[arg-type]
            observer=observer,
            exits=exits(self.target) if exits else None,
            draft_exit=ExitPoint(1, LensHead(self.target), sure),
        )
        self.outputs: dict[str, list[Output]] = {}
        self._expected: dict[tuple[int, ...], torch.Tensor] = {}

    @property
    def scheduler(self):  # type: ignore[no-untyped-def]
        return self.engine._scheduler

    def submit(self, name: str, prompt: Iterable[int], sampling: SamplingParams = SamplingParams(), **fields: object) -> None:
        request = Request(name, tuple(prompt), sampling, **fields)  # type: ignore[arg-type]
        outputs: list[Output] = []
        self.engine.submit(request, outputs.append)
        self.outputs[name] = outputs

    def run(self, *, audit: bool = False, most: int = 2000) -> None:
        for _ in range(most):
            more = self.engine.step()
            if audit:
                self.audit()
            if not more:
                return
        raise AssertionError("the engine never becomes idle")

    def audit(self) -> None:
        right = {
            id(runner.cache): torch.zeros(runner.cache.keys_values.shape[::2][:2], dtype=torch.bool) for runner in (self.target, self.draft)
        }  # [layers, slots]
        held: Counter[int] = Counter()
        for sequence in self.scheduler.running:
            held.update(sequence.blocks)
            assert len(set(sequence.blocks)) == len(sequence.blocks), "a table holds a block twice"
            assert self._writes_to_private_blocks(sequence), "a shared block is written"
            assert len(sequence.blocks) <= -(-len(sequence.token_ids) // self.settings.block_size), "blocks of rejected tokens are kept"
            self._check(self.target, sequence.blocks, sequence.token_ids[: sequence.num_computed], right)
            for waiting in sequence.unfilled:
                self._check(self.target, sequence.blocks, sequence.token_ids[: waiting.position + 1], right, waiting.layer)
            if not self.settings.shared_kv:
                self._check(self.draft, sequence.blocks, sequence.token_ids[: sequence.draft_computed], right)
        blocks = self.scheduler.blocks
        assert len(held) == blocks.num_used, "blocks are lost"
        assert [held[block] for block in range(blocks.num_blocks)] == blocks._references, "blocks are miscounted"
        assert blocks.num_free + blocks.num_used + blocks.num_cached == blocks.num_blocks
        self._check_cached(right)
        for runner in (self.target, self.draft):
            runner.cache.keys_values.transpose(1, 2)[~right[id(runner.cache)]] = torch.nan  # whoever reads it, learns of it

    def _writes_to_private_blocks(self, sequence: Sequence) -> bool:
        """The next write of either model is behind every published block."""
        own = self.engine._decoder.own_draft_cache
        first = min(sequence.num_computed, sequence.draft_computed) if own else sequence.num_computed
        written = sequence.blocks[first // self.settings.block_size :]
        return not any(block in self.scheduler.blocks._cache for block in written)

    def _check_cached(self, right: dict[int, torch.Tensor]) -> None:
        cache = self.scheduler.blocks._cache
        parents = {id(entry.parent) for entry in cache._by_block.values()}
        for entry in cache._by_block.values():
            assert entry.parent is None or cache._by_block[entry.parent.block] is entry.parent, "an entry outlives its parent"
            if id(entry) in parents:
                continue  # checked with those behind it
            blocks, ids = text_of(entry)
            self._check(self.target, blocks, ids, right)
            if self.engine._decoder.own_draft_cache:
                self._check(self.draft, blocks, ids, right)

    def _check(
        self, runner: ToyRunner, blocks: list[int], ids: list[int], right: dict[int, torch.Tensor], layers: int | None = None
    ) -> None:
        """In the first `layers`, or in all."""
        size = self.settings.block_size
        assert len(ids) <= len(blocks) * size, "positions counted as computed have no block"
        slots = [blocks[at // size] * size + at % size for at in range(len(ids))]
        right[id(runner.cache)][:layers, slots] = True
        if ids:
            key = (id(runner), *ids)
            if key not in self._expected:
                self._expected[key] = whole_pass(runner, ids)[1]
            expected = self._expected[key]
            found = runner.cache.keys_values[:layers, :, slots]
            torch.testing.assert_close(found, expected[:layers], rtol=1e-9, atol=1e-9, msg="a cache is wrong")

    def tokens(self, name: str) -> list[int]:
        return tokens(self.outputs[name])

    def last(self, name: str) -> Output:
        return self.outputs[name][-1]
