"""Two served engines whose agreement is known: tokens follow from a hash of the text, for tests of calibration."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import numpy as np

from builder.runtime.engine_model import EngineCall, EngineReply

LETTERS = range(97, 123)  # ids of the tiny tokenizer
VOCAB = 320


def chance(text: tuple[int, ...], what: str) -> float:
    """Between 0 and 1, the same for the same text."""
    digest = hashlib.blake2b(np.array(text, np.int32).tobytes() + what.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass
class Target:
    """Writes letters, and `end` after one token in `ends_in`."""

    end: int = 257
    ends_in: int = 1000
    room: int = 256
    calls: list[EngineCall] = field(default_factory=list)
    flying: int = 0
    most: int = 0
    left_early: int = 0

    def next(self, text: tuple[int, ...]) -> int:
        if chance(text, "end") < 1 / self.ends_in:
            return self.end
        return LETTERS[int(chance(text, "letter") * len(LETTERS))]

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineReply, None]:
        if len(call.token_ids) + call.max_tokens > self.room:
            raise ValueError(f"{len(call.token_ids)} tokens and {call.max_tokens} more do not fit {self.room}")
        self.calls.append(call)
        self.flying += 1
        self.most = max(self.most, self.flying)
        text = call.token_ids if call.seed is None else (call.seed, *call.token_ids)
        try:
            for number in range(call.max_tokens):
                if not number % 16:
                    await asyncio.sleep(0)
                text = (*text, self.next(text))
                yield EngineReply(text[-1:])
        except GeneratorExit:
            self.left_early += 1
            raise
        finally:
            self.flying -= 1


@dataclass
class Draft:
    """Is sure of `sure` of its tokens, of which `right` are the target's; of the others, `guessed`."""

    target: Target
    sure: float = 0.6
    right: float = 0.995
    guessed: float = 0.4
    calls: int = 0
    flying: int = 0
    most: int = 0
    mute: bool = False  # gives no logits

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineReply, None]:
        self.calls += 1
        self.flying += 1
        self.most = max(self.most, self.flying)
        await asyncio.sleep(0)
        text = call.token_ids
        sure = chance(text, "sure") < self.sure
        token = self.target.next(text)
        if chance(text, "right") > (self.right if sure else self.guessed):
            token = LETTERS[0] if token != LETTERS[0] else LETTERS[1]
        confidence = 0.9 + 0.1 * chance(text, "confidence") if sure else 0.2 + 0.6 * chance(text, "confidence")
        logits = np.full((1, VOCAB), np.log((1 - confidence) / (VOCAB - 1)), np.float32)
        logits[0, token] = np.log(confidence)
        self.flying -= 1
        yield EngineReply((token,), None if self.mute else logits)
