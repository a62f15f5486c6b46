"""The version under test: its own decode loop, asked many prompts at once, plainly or as it would serve them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from builder.decoding.params import SamplingParams
from builder.errors import EngineError
from builder.repository.engine import EngineParts, open_parts
from builder.runtime.engine import Engine
from builder.runtime.request import FinishReason, Output, Request
from builder.spec.pipeline import PipelineSpec
from builder.text import Tokenizer


@dataclass(frozen=True)
class Ask:
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    speculation: bool  # False is plain decoding


@dataclass
class Reply:
    """Seconds are as a client in the batch sees them: `first` to the first token, `total` to the last."""

    token_ids: list[int] = field(default_factory=list)
    first: float = 0.0
    total: float = 0.0
    rounds: int = 0  # that had a draft
    drafted: int = 0
    accepted: int = 0
    ended: bool = False  # by an end-of-sequence token
    error: str | None = None

    @property
    def inter_token(self) -> float:
        """Seconds a token after the first."""
        return (self.total - self.first) / max(1, len(self.token_ids) - 1)


Advance = Callable[[], None]


class Subject:
    """One engine, as the version's own spec makes it. Plain and speculative requests differ in nothing but speculation."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        self._engine = self._make()
        self._asked = 0

    @classmethod
    def open(cls, folder: Path, spec: PipelineSpec) -> Subject:
        """Of a `<p>_decode/N` folder. EngineError when it cannot run on this machine."""
        return cls(open_parts(folder, spec))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.parts.tokenizer

    @property
    def speculates(self) -> bool:
        return self.parts.settings.proposer != "none"

    @property
    def batch(self) -> int:
        """Requests that run at once."""
        return self.parts.settings.max_batch_size

    def reset(self) -> None:
        """Forget cached prompts: somebody else used the KV cache."""
        self._engine = self._make()

    @property
    def exits_early(self) -> bool:
        return self.parts.exits is not None

    def ask(self, asks: Sequence[Ask], advance: Advance = lambda: None) -> list[Reply]:
        """Answers in the order of `asks`; as many run at once as the engine takes. EngineError when one fails."""
        replies = [Reply() for _ in asks]
        waiting = iter(zip(asks, replies, strict=True))
        for _ in range(min(self.batch, len(asks))):
            self._submit_next(waiting, advance)
        while self._engine.step():
            pass
        if failed := [reply for reply in replies if reply.error is not None]:
            raise EngineError(f"{len(failed)} of {len(asks)} requests failed ({failed[0].error})", mend="The log above names the cause")
        return replies

    def text(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode([token for token in token_ids if token not in self.parts.eos_token_ids])

    def _make(self) -> Engine:
        settings = self.parts.settings
        waiting = max(settings.max_waiting, settings.max_batch_size)
        # drafts of full length always: a control that stops drafting where it does not pay would leave nothing to verify
        return replace(self.parts, settings=replace(settings, max_waiting=waiting, adaptive=False)).engine()

    def _submit_next(self, waiting: Iterator[tuple[Ask, Reply]], advance: Advance) -> None:
        item = next(waiting, None)
        if item is None:
            return
        ask, reply = item
        self._asked += 1
        request = Request(f"quality-{self._asked}", ask.prompt_ids, ask.sampling, ask.speculation, early_exit=ask.speculation)
        self._engine.submit(request, partial(self._take, waiting, advance, reply, time.perf_counter()))

    def _take(self, waiting: Iterator[tuple[Ask, Reply]], advance: Advance, reply: Reply, began: float, output: Output) -> None:
        now = time.perf_counter() - began
        if output.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            reply.error = output.error or str(output.finish_reason)
        if output.token_ids and not reply.token_ids:
            reply.first = now
        reply.token_ids += output.token_ids
        if output.finish_reason is None:
            return
        reply.total = now
        reply.ended = output.finish_reason is FinishReason.STOP
        if output.stats is not None:
            reply.rounds, reply.drafted = output.stats.num_spec_steps, output.stats.num_draft_tokens
            reply.accepted = output.stats.num_accepted_draft_tokens
        advance()
        self._submit_next(waiting, advance)
