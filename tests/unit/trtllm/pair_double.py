"""A started engine over doubles of a target and a draft."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import torch

from builder.decoding.params import SamplingParams
from builder.decoding.sampling import distribution
from builder.errors import EngineError
from builder.runtime.engine_model import EngineCall, EngineReply
from builder.runtime.pair_engine import PairEngine
from builder.runtime.request import Output, Request
from builder.runtime.settings import EngineSettings
from tests.unit.runtime.harness import tokens, whole_pass
from tests.unit.toy_runner import toy_pair
from tests.unit.trtllm.engine_double import EngineDouble


class Model:
    """An EngineModel over a double. Keeps the calls; `pause` seconds a token, `fails` the next calls."""

    def __init__(self, double: EngineDouble) -> None:
        self.double = double
        self.calls: list[EngineCall] = []
        self.left_early = 0
        self.pause = 0.0
        self.fails = False
        self.forced: list[int] | None = None  # says this, whatever was asked
        self.mute = False  # gives no logits, whoever asks

    def law(self, text: list[int], sampling: SamplingParams) -> torch.Tensor:
        """Probabilities [V] of the token that follows."""
        return distribution(whole_pass(self.double.runner, text)[0][-1:], sampling)[0]

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineReply, None]:
        self.calls.append(call)
        if self.fails:
            raise EngineError("the engine is out of order")
        logits = None if call.draft_logits is None else torch.from_numpy(call.draft_logits)
        run = self.double.run(call.token_ids, call.max_tokens, call.sampling, call.seed, call.draft, logits)
        whole: list[int] = []
        rows: list[torch.Tensor] = []
        try:
            for new, row in run:
                await asyncio.sleep(self.pause)
                if call.streams:
                    yield EngineReply(tuple(new))
                whole, rows = whole + new, [*rows, row]
        except GeneratorExit:
            self.left_early += 1
            raise
        if not call.streams:
            kept = torch.cat(rows).numpy() if call.returns_logits and not self.mute else None
            yield EngineReply(tuple(self.forced[: len(whole)] if self.forced else whole), kept)


class Pair:
    """A started engine, its two models, and the outputs by request."""

    def __init__(self, *, eos: frozenset[int] = frozenset(), tokenizer: Any = None, noise: float = 0.1, **settings: Any) -> None:
        self.draft_logits, exit_at = settings.pop("draft_logits", False), settings.pop("exit_at", None)
        options = {"max_batch_size": 6, "max_seq_len": 64, "block_size": 4, "num_blocks": 96, "shared_kv": False} | settings
        target, draft = toy_pair(shared_kv=False, noise=noise)
        self.target = Model(EngineDouble(target, max_draft_len=4, max_seq_len=64))
        self.draft = Model(EngineDouble(draft, max_draft_len=0, max_seq_len=64))
        self.closed = threading.Event()
        self.outputs: dict[str, list[Output]] = {}
        self.over: dict[str, threading.Event] = {}
        self.engine = PairEngine(
            self.target,
            self.draft,
            EngineSettings(**options),
            vocab_size=11,
            eos_token_ids=eos,
            draft_logits=self.draft_logits,
            exit_at=exit_at,
            tokenizer=tokenizer,
            close=self.close,
        )
        self.engine.start()

    async def close(self) -> None:
        self.closed.set()

    def submit(self, name: str, prompt: Iterable[int], sampling: SamplingParams = SamplingParams(), **fields: Any) -> None:
        outputs: list[Output] = []
        over = threading.Event()
        ends = [sampling.n]

        def take(output: Output) -> None:
            outputs.append(output)
            ends[0] -= output.finish_reason is not None
            if not ends[0]:
                over.set()

        self.engine.submit(Request(name, tuple(prompt), sampling, **fields), take)
        self.outputs[name], self.over[name] = outputs, over

    def last(self, name: str) -> Output:
        assert self.over[name].wait(30), "the request never ends"
        return self.outputs[name][-1]

    def tokens(self, name: str) -> list[int]:
        self.last(name)
        return tokens(self.outputs[name])


def eventually(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.002)
