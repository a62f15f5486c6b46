"""tensorrt_llm with recorded signatures: it takes the names of the version table and no others, and continues by counting.

Not TensorRT-LLM: what is shown with it is that we call what the table says, and what we make of the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from builder.plan.trtllm.names import unknown_arguments
from builder.plan.trtllm.versions import LLMAPI_LINES, line_of

WRAP = 250  # tokens stay below those with a meaning


@dataclass
class SamplingParams:
    """The parameters that both lines have and we pass."""

    max_tokens: int = 32
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    return_perf_metrics: bool = False


@dataclass
class Generation:
    """Counts upward from the last token of the prompt, `step` tokens at a time."""

    last: int
    sampling: SamplingParams
    step: int
    pause: float
    counts: bool
    aborted: bool = False
    outputs: list[Any] = field(default_factory=list)

    async def __aiter__(self) -> AsyncIterator[Generation]:
        made: list[int] = []
        drafted = accepted = 0
        while len(made) < self.sampling.max_tokens:
            await asyncio.sleep(self.pause)
            for _ in range(min(self.step, self.sampling.max_tokens - len(made))):
                made.append((made[-1] if made else self.last) + 1)
                if made[-1] in (self.sampling.stop_token_ids or ()):
                    break
            drafted, accepted = drafted + self.step - 1, accepted + self.step - 1
            stopped = made[-1] in (self.sampling.stop_token_ids or ())
            finish = "stop" if stopped else "length" if len(made) >= self.sampling.max_tokens else None
            counted = SimpleNamespace(total_draft_tokens=drafted, total_accepted_draft_tokens=accepted) if self.counts else None
            metrics = SimpleNamespace(speculative_decoding=counted)
            self.outputs = [SimpleNamespace(token_ids=list(made), finish_reason=finish, request_perf_metrics=metrics)]
            yield self
            if finish:
                return

    def abort(self) -> None:
        self.aborted = True


class Llm:
    """One instance. `made` lists all instances of a test, `generations` its requests."""

    def __init__(self, version: str, pause: float, counts: bool, made: list[Llm], arguments: dict[str, Any]) -> None:
        wrong = list(unknown_arguments(arguments, LLMAPI_LINES[line_of(version)]))
        if wrong:
            raise ValueError("; ".join(wrong))
        self.arguments, self.generations, self.closed = arguments, list[Generation](), False
        self._pause, self._counts = pause, counts
        made.append(self)

    def generate_async(self, inputs: list[int], sampling_params: SamplingParams | None = None, *, streaming: bool = False) -> Generation:
        assert streaming and sampling_params is not None
        drafted = self.arguments.get("speculative_config", {}).get("max_draft_len", 0)
        generation = Generation(inputs[-1], sampling_params, drafted + 1, self._pause, self._counts and drafted > 0)
        self.generations.append(generation)
        return generation

    def shutdown(self) -> None:
        self.closed = True


def tensorrt_llm(version: str, made: list[Llm], *, pause: float = 0.0, counts: bool = True) -> ModuleType:
    """The module. `counts` False is a release whose sampler counts no drafts."""
    module = ModuleType("tensorrt_llm")
    module.__version__ = version  # type: ignore[attr-defined]
    module.SamplingParams = SamplingParams  # type: ignore[attr-defined]
    module.LLM = lambda **arguments: Llm(version, pause, counts, made, arguments)  # type: ignore[attr-defined]
    return module
