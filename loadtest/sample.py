"""One request's measurements: numbers and names, neither prompt nor answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.ask import Ask
from loadtest.reply import Reply


@dataclass(frozen=True)
class Sample:
    """Times in seconds from the block's start. `due` is when the request should have started, `started` when it did."""

    block: int
    arm: str
    key: str
    kind: str
    protocol: str
    tenant: str
    fault: str | None
    outcome: str
    error: str | None
    due: float
    started: float
    first: float | None  # arrival of the first chunk; None where the answer comes in one piece, or none came
    last: float
    longest_gap: float | None  # between two chunks
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    optimisation: str | None
    decode_seconds: float  # of the server: from the first token to the last
    known: bool  # whether the server's count of tokens reached the client
    digest: str | None = None

    @property
    def complete(self) -> bool:
        return self.outcome == "done"

    @property
    def e2e(self) -> float:
        return self.last - self.due

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.due

    @property
    def inter_token(self) -> float | None:
        """Mean seconds a token after the first; None for one token, or where all came at once."""
        if self.first is None or self.tokens < 2 or self.last <= self.first:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @classmethod
    def of(cls, ask: Ask, reply: Reply, *, block: int, arm: str, due: float, started: float, ended: float, zero: float) -> Sample:
        """`started`, `ended` and `zero`, the block's start, on the monotonic clock; `due` from the block's start."""
        usage, stats = reply.usage or {}, reply.stats or {}
        times = reply.chunk_times
        return cls(
            block=block,
            arm=arm,
            key=ask.key,
            kind=ask.kind,
            protocol=ask.protocol,
            tenant=ask.tenant,
            fault=ask.fault,
            outcome=reply.outcome,
            error=reply.error,
            due=due,
            started=started - zero,
            first=times[0] - zero if times and ask.streams else None,
            last=ended - zero,
            longest_gap=max((b - a for a, b in itertools.pairwise(times)), default=None),
            prompt_tokens=usage.get("prompt_tokens", 0),
            cached_tokens=usage.get("prompt_tokens_details", {}).get("cached_tokens", 0),
            tokens=usage.get("completion_tokens", 0),
            rounds=stats.get("num_spec_steps", 0),
            drafted=stats.get("num_draft_tokens", 0),
            accepted=stats.get("num_accepted_draft_tokens", 0),
            optimisation=stats.get("optimisation"),
            decode_seconds=stats.get("decode_seconds", 0.0),
            known=reply.usage is not None,
            digest=reply.digest if reply.outcome == "done" else None,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write(samples: Iterable[Sample], path: Path) -> None:
    """Append, one line each."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(sample.to_json()) + "\n" for sample in samples)


def read(path: Path) -> Iterator[Sample]:
    """A last line that a killed client left half-written is no sample."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield Sample(**json.loads(line))
