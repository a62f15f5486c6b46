"""Live load: streams that ask one request after another and keep what came of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from builder.errors import TandemError
from builder.serve import client

PROMPTS = (
    "Explain how a bicycle stays upright.",
    "Write a short story about a lighthouse keeper and a whale.",
    "What should I pack for a week in the mountains in autumn?",
    "Describe the taste of an orange to somebody who never had one.",
    "Write a Python function that merges two sorted lists.",
    "Why do leaves change their colour?",
    "Give me three arguments for and three against working at night.",
    "How does a refrigerator keep things cold?",
)


@dataclass(frozen=True)
class Asked:
    """One request: monotonic seconds of its start, first token and end. `error` is set when it failed; what it said is not kept."""

    begun: float
    first: float
    ended: float
    tokens: int
    stats: dict[str, Any]
    error: str | None = None

    @property
    def speculative(self) -> bool:
        return self.stats.get("optimisation") == "speculative"


@dataclass
class Load:
    """Context manager: `streams` threads ask until it is left. `parameters` may be replaced while it runs, for requests to come."""

    url: str  # host:port of gRPC
    pipeline: str
    streams: int
    parameters: dict[str, str | int | float | bool]
    asked: list[Asked] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(self.streams)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def failed(self) -> list[Asked]:
        return [asked for asked in list(self.asked) if asked.error is not None]

    def since(self, moment: float) -> Sequence[Asked]:
        """Requests that began at or after `moment` and have ended."""
        return [asked for asked in list(self.asked) if asked.begun >= moment]

    def tokens_per_second(self, begin: float, end: float) -> float:
        """In a window that lies in the past; a request's tokens are spread evenly from its first token to its end."""
        tokens = 0.0
        for asked in list(self.asked):
            overlap = min(asked.ended, end) - max(asked.first, begin)
            if overlap > 0 and asked.ended > asked.first:
                tokens += asked.tokens * overlap / (asked.ended - asked.first)
        return tokens / (end - begin)

    def _run(self, number: int) -> None:
        turn = number
        while not self._stop.is_set():
            self.asked.append(self._ask(PROMPTS[turn % len(PROMPTS)]))
            turn += 1

    def _ask(self, prompt: str) -> Asked:
        begun = time.monotonic()
        first: float | None = None
        tokens = 0
        stats: dict[str, Any] = {}
        try:
            for chunk in client.generate(self.url, self.pipeline, prompt=prompt, parameters=dict(self.parameters), timeout=60):
                first = first or time.monotonic()
                tokens = (chunk.usage or {}).get("completion_tokens", tokens)
                stats = chunk.decode_stats or stats
        except TandemError as error:
            return Asked(begun, first or begun, time.monotonic(), tokens, stats, str(error))
        return Asked(begun, first or begun, time.monotonic(), tokens, stats, None if stats else "the answer had no decode_stats")
