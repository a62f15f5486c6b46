"""The calls of one sequence to a target and a draft that batch and cache by themselves, and what their replies mean."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builder.decoding.proposers import Draft
from builder.decoding.proposers.ngram import lookup
from builder.errors import EngineError
from builder.runtime.engine_model import EngineCall, EngineModel, whole_reply
from builder.runtime.flight import Flight, InFlight
from builder.runtime.pair_exit import PairExit
from builder.runtime.sequence import Sequence

log = logging.getLogger(__name__)
DRAFT_REST = 10.0  # seconds without drafts after the draft model failed
Tokens = tuple[int, ...]


class Drawer(IntEnum):
    """Who draws with a seed: draft and target must not see the same numbers."""

    TARGET = 0
    DRAFT = 1


@dataclass(frozen=True)
class Won:
    """What one reply of the target gave: first the `left` drafted tokens that left unverified before it was asked, then `accepted` drafted
    ones that it kept, then its own. At most `limit` might be drafted."""

    token_ids: Tokens
    target: Flight
    limit: int = 0
    draft: Draft = field(default_factory=Draft)
    left: int = 0
    accepted: int = 0
    drafting: Flight | None = None

    @property
    def checked(self) -> int:
        """Drafted tokens that the target judged."""
        return len(self.draft) - self.left


class PairDecoder:
    """Belongs to one event loop. With `draft_logits` a sampled draft is judged by both distributions, else token by token. With
    `looks_up` the draft is asked only where the text does not repeat itself."""

    def __init__(self, target: EngineModel, draft: EngineModel | None, *, draft_logits: bool, looks_up: bool) -> None:
        self._target = target
        self._draft = draft
        self._draft_logits = draft_logits
        self._looks_up = looks_up
        self._in_flight = InFlight()
        self._rests_until = 0.0  # the draft; monotonic clock

    @property
    def has_draft(self) -> bool:
        """Whether there is a draft model that works."""
        return self._draft is not None and time.monotonic() >= self._rests_until

    async def round(self, sequence: Sequence, limit: int, exit_at: PairExit | None = None) -> Won:
        """Draft up to `limit` tokens and have the target check those that do not leave at `exit_at`, in one pass of it, which makes the
        keys and values of all. EngineError when the target fails."""
        drafted, logits, drafting = await self._propose(sequence, limit, exit_at)
        left = 0 if exit_at is None or logits is None else exit_at.leaving(drafted, logits, sequence.answered)
        sure, rest = drafted[:left], drafted[left:]
        call = self._call(sequence, len(rest) + 1, Drawer.TARGET)
        call = replace(call, token_ids=call.token_ids + sure, draft=rest, draft_logits=logits if self._judges_by_logits(sequence) else None)
        with self._in_flight.fly("target", len(drafted) + 1) as flight:  # those that left are rows too
            reply = await whole_reply(self._target, call)
        draft = Draft(list(drafted), copied=bool(drafted) and drafting is None)
        return Won(sure + reply.token_ids, flight, limit, draft, left, _agreeing(rest, reply.token_ids), drafting)

    async def stream(self, sequence: Sequence, tokens: int) -> AsyncGenerator[Won, None]:
        """Up to `tokens` tokens without drafts, as they come: one request to the target for all of them. Leaving early ends it."""
        call = replace(self._call(sequence, tokens, Drawer.TARGET), streams=True)
        async with aclosing(self._target.generate(call)) as replies:
            while tokens > 0:
                with self._in_flight.fly("target", 1) as flight:
                    reply = await anext(replies, None)
                if reply is None:
                    return
                tokens -= len(reply.token_ids)
                if tokens <= 0:  # nothing more will come: let it end by itself, not as a cancelled request
                    await anext(replies, None)
                yield Won(reply.token_ids, flight)

    async def _propose(self, sequence: Sequence, limit: int, exit_at: PairExit | None) -> tuple[Tokens, NDArray[Any] | None, Flight | None]:
        """Drafted tokens and, where something hangs on them, the logits they were drawn from. A draft model that fails costs speed and no
        answer."""
        if not limit or self._draft is None or not self.has_draft:
            return (), None, None
        if self._looks_up and sequence.may_copy and (found := lookup(sequence.token_ids, limit)):
            return tuple(found), None, None
        judged_by_logits = self._judges_by_logits(sequence)
        reads_logits = judged_by_logits or exit_at is not None
        call = replace(self._call(sequence, limit, Drawer.DRAFT), returns_logits=reads_logits)
        if not judged_by_logits:  # its best guess is kept oftenest, whatever the target draws
            call = replace(call, sampling=replace(call.sampling, temperature=0.0), seed=None)
        with self._in_flight.fly("draft", 1) as flight:
            try:
                reply = await whole_reply(self._draft, call)
            except EngineError as error:
                log.warning("the draft model failed, no drafts for %.0f s: %s", DRAFT_REST, error)
                self._rests_until = time.monotonic() + DRAFT_REST
                return (), None, None
        drafted = reply.token_ids[:limit]
        if not reads_logits:
            return drafted, None, flight
        if reply.logits is None or len(reply.logits) < len(drafted):
            where = "engine.tensorrt_llm.draft_logits" if judged_by_logits else "early_exit.mode"
            raise EngineError("the draft gave no logits", where=where, mend="Build both engines again")
        return drafted, reply.logits[: len(drafted)], flight

    def _judges_by_logits(self, sequence: Sequence) -> bool:
        """Whether the target judges drafts by both distributions."""
        return self._draft_logits and not sequence.request.sampling.greedy

    def _call(self, sequence: Sequence, max_tokens: int, drawer: Drawer) -> EngineCall:
        sampling = sequence.request.sampling
        seed = None if sampling.greedy else call_seed(sequence.seed, sequence.drawn, drawer)
        return EngineCall(tuple(sequence.token_ids), max_tokens, sampling, seed)


def call_seed(seed: int, position: int, drawer: Drawer) -> int:
    """Each call starts its engine's random numbers anew: with the request's own seed, every round would draw with the same ones."""
    return int(np.random.SeedSequence((seed % 2**64, position, drawer)).generate_state(1, np.uint64)[0])


def _agreeing(drafted: Tokens, won: Tokens) -> int:
    """Drafted tokens at the beginning of what the target gave: those it kept."""
    kept = 0
    while kept < min(len(drafted), len(won)) and drafted[kept] == won[kept]:
        kept += 1
    return kept
