"""Loaded engines of one version, from which decode loops of any proposer and K are made. Weights are read once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

from builder.bench.pass_timer import PassTimer, timed
from builder.bench.steps import Answer, StepLog
from builder.decoding.params import SamplingParams
from builder.errors import EngineError
from builder.repository.engine import EngineParts, open_parts
from builder.runtime.engine import Engine
from builder.runtime.request import Output, Request
from builder.spec.pipeline import PipelineSpec


@dataclass(frozen=True, order=True)
class Setting:
    """One way to decode. `draft_tokens` is K; 0 with proposer "none" is plain decoding, with "early_exit" tokens that leave there."""

    draft_tokens: int
    method: str  # a proposer's name


PLAIN = Setting(0, "none")
EARLY_EXIT = Setting(0, "early_exit")


@dataclass
class Lab:
    """Runs one request, or a batch, at a time: all loops share one KV cache."""

    parts: EngineParts
    load_seconds: float
    target_passes: PassTimer = field(default_factory=PassTimer)
    draft_passes: PassTimer = field(default_factory=PassTimer)
    _loops: dict[Setting, tuple[Engine, StepLog]] = field(default_factory=dict)
    _names: count[int] = field(default_factory=count)

    @classmethod
    def open(cls, folder: Path, spec: PipelineSpec) -> Lab:
        """Of a `<p>_decode/N` folder. EngineError when it cannot run on this machine."""
        began = time.perf_counter()
        parts = open_parts(folder, spec)
        return cls(parts, time.perf_counter() - began)

    @property
    def methods(self) -> tuple[str, ...]:
        """Proposers that this version can use."""
        if self.parts.draft_exit is not None:
            return ("ngram", "early_exit")
        return ("draft_model", "ngram", "hybrid") if self.parts.draft is not None else ("ngram",)

    def answer(self, setting: Setting, prompt_ids: Sequence[int], tokens: int) -> Answer:
        """One greedy answer of exactly `tokens` tokens, alone in the engine; the model's end-of-sequence tokens do not end it."""
        engine, log = self._loop(setting)
        log.clear()
        (output,) = self._run(engine, [prompt_ids], tokens)
        return Answer(tuple(output), tuple(log.steps), log.time_to_first_token, self.natural_length(output), log.exit_layers)

    def batch(self, setting: Setting, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """The same for several prompts that run together; their tokens only."""
        return self._run(self._loop(setting)[0], prompts, tokens)

    def fit(self, prompt_ids: Sequence[int], tokens: int) -> list[int]:
        """The prompt, cut where it would leave no room for `tokens` tokens in the context."""
        return list(prompt_ids[: max(1, self.parts.settings.max_seq_len - tokens)])

    def natural_length(self, token_ids: Sequence[int]) -> int:
        """Tokens up to and with the first end-of-sequence token: where a user's answer would end."""
        ends = (place + 1 for place, token in enumerate(token_ids) if token in self.parts.eos_token_ids)
        return next(ends, len(token_ids))

    def _loop(self, setting: Setting) -> tuple[Engine, StepLog]:
        if setting not in self._loops:
            parts, log = self.parts, StepLog(self.target_passes, self.draft_passes)
            needs_draft = setting.method in ("draft_model", "hybrid")
            draft = timed(parts.draft, self.draft_passes) if parts.draft is not None and needs_draft else None
            # no prefix cache: the prefill of an answer is run in full, however often its prompt was asked before
            settings = replace(
                parts.settings,
                proposer="none" if setting == EARLY_EXIT else setting.method,
                max_draft_tokens=max(1, setting.draft_tokens),
                adaptive=False,  # what is measured is one K
                prefix_caching=False,
            )
            target = timed(parts.target, self.target_passes, self.draft_passes)
            exits = parts.exits if setting == EARLY_EXIT else None
            engine = Engine(
                target, draft, settings, eos_token_ids=parts.eos_token_ids, observer=log, exits=exits, draft_exit=parts.draft_exit
            )
            self._loops[setting] = engine, log
        return self._loops[setting]

    def _run(self, engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in prompts]
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        for ids, answer in zip(prompts, answers, strict=True):
            engine.submit(Request(f"bench-{next(self._names)}", tuple(ids), sampling), partial(_append, answer))
        while engine.step():
            pass
        if any(len(answer) < tokens for answer in answers):
            raise EngineError("a benchmark request failed before its end", mend="The log above names the cause")
        return answers


def _append(answer: list[int], output: Output) -> None:
    answer += output.token_ids
