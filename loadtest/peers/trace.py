"""One answer as it streamed in, and what many of them say: rates are taken from arrival times, decode apart from prefill."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Trace:
    """Times are perf_counter seconds. `arrivals` holds (time, tokens that came with it); speculation brings several at once."""

    kind: str
    prompt_tokens: int
    started: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    rounds: int | None = None  # target passes after the first token, where the peer speculates

    def start(self) -> None:
        self.started = time.perf_counter()

    def arrive(self, tokens: int) -> None:
        self.arrivals.append((time.perf_counter(), tokens))

    @property
    def ttft_s(self) -> float:
        return self.arrivals[0][0] - self.started

    @property
    def decoded(self) -> int:
        """Tokens that came after the first arrival: what the decode time paid for."""
        return sum(tokens for _, tokens in self.arrivals[1:])

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second from the first arrival to the last; None when everything came at once."""
        if not self.decoded:
            return None
        return self.decoded / (self.arrivals[-1][0] - self.arrivals[0][0])


@dataclass(frozen=True)
class Summary:
    """`tok_s` is the median over prompts of each prompt's median over rounds; `by_class` the same within a class."""

    tok_s: float
    ttft_ms: float
    prompt_tok_s: float
    acceptance_length: float | None
    by_class: dict[str, float]


def summarise(prompts: Iterable[list[Trace]]) -> Summary:
    """Sum up the traces, one list of rounds per prompt. Raises ValueError when no prompt got two arrivals."""
    rates: dict[str, list[float]] = {}
    traces: list[Trace] = []
    for rounds in prompts:
        traces += rounds
        measured = [trace.decode_tok_s for trace in rounds if trace.decode_tok_s is not None]
        if measured:
            rates.setdefault(rounds[0].kind, []).append(median(measured))
    if not rates:
        raise ValueError("no answer was longer than its first tokens")
    return Summary(
        tok_s=median(rate for group in rates.values() for rate in group),
        ttft_ms=1000 * median(trace.ttft_s for trace in traces),
        prompt_tok_s=median(trace.prompt_tokens / trace.ttft_s for trace in traces),
        acceptance_length=_acceptance_length(traces),
        by_class={kind: median(group) for kind, group in rates.items()},
    )


def _acceptance_length(traces: list[Trace]) -> float | None:
    """Tokens per target pass, bonus included: 1 + accepted / rounds. None for plain decoding."""
    rounds = sum(trace.rounds or 0 for trace in traces)
    return sum(trace.decoded for trace in traces) / rounds if rounds else None
