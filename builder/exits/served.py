"""Two served engines, target and draft, as a calibration asks them: whole answers of the one, single tokens of the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from builder.decoding.exits.confidence import probabilities_of
from builder.decoding.exits.rule import Answers
from builder.decoding.params import SamplingParams
from builder.errors import EngineError
from builder.exits.passages import Passage, Wanted
from builder.runtime.engine_model import EngineCall, EngineModel, whole_reply

GREEDY = SamplingParams()
Asked = TypeVar("Asked")
Got = TypeVar("Got")


@dataclass(frozen=True)
class ServedEngines:
    """`ends` are the end-of-sequence tokens, which the engines do not know. `most` requests are in flight at once."""

    target: EngineModel
    draft: EngineModel
    ends: frozenset[int]
    most: int

    async def write(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        """The target's answers, in order, each up to its end. EngineError when it fails."""
        return await _each(self._write, wanted, self.most)

    async def judge(self, passages: Sequence[Passage]) -> Answers:
        """What the draft says at every token of the answers, behind all that the target wrote before it. EngineError when it fails."""
        judged = await _each(self._judge, passages, self.most)
        rows = np.array([row for answer in judged for row in answer]).reshape(-1, 2)
        said = np.array([token for passage in passages for token in passage.answer])
        return Answers(rows[:, 1:], (rows[:, 0] == said)[:, None], tuple(passage.rows for passage in passages))

    async def _write(self, wanted: Wanted) -> tuple[int, ...]:
        ids, sampling = wanted
        written: list[int] = []
        call = EngineCall(ids, sampling.max_tokens, sampling, sampling.seed, streams=True)
        async with aclosing(self.target.generate(call)) as replies:
            async for reply in replies:
                for token in reply.token_ids:
                    written.append(token)
                    if token in self.ends:
                        return tuple(written)
        return tuple(written)

    async def _judge(self, passage: Passage) -> list[tuple[int, float]]:
        """The draft's token and its probability at each token of an answer. One after the other: each finds the text before it in the
        engine's cache."""
        said = []
        for place in range(passage.rows):
            call = EngineCall(passage.prompt + passage.answer[:place], 1, GREEDY, returns_logits=True)
            reply = await whole_reply(self.draft, call)
            if reply.logits is None:
                mend = "Build both engines again, with early_exit.mode answer"
                raise EngineError("the draft gave no logits", where="early_exit.mode", mend=mend)
            token = reply.token_ids[0]
            said.append((token, float(probabilities_of([token], reply.logits[:1])[0])))
        return said


async def _each(ask: Callable[[Asked], Awaitable[Got]], wanted: Sequence[Asked], most: int) -> list[Got]:
    """The answers in order, at most `most` asked for at once."""
    room = asyncio.Semaphore(most)

    async def one(asked: Asked) -> Got:
        async with room:
            return await ask(asked)

    return await asyncio.gather(*(one(asked) for asked in wanted))
