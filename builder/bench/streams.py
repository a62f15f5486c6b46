"""Many streams at once on one engine: when each token of each stream arrived."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice, pairwise

from builder.bench.lab import Lab, Setting
from builder.decoding.params import SamplingParams
from builder.errors import EngineError
from builder.runtime.engine import Engine
from builder.runtime.request import DecodeStats, Output, Request

_NAMES = count()


@dataclass
class Stream:
    """One answer. `arrivals` are (seconds, tokens) of its chunks, on the clock of `asked`."""

    asked: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    stats: DecodeStats | None = None

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.arrivals)

    @property
    def time_to_first_token(self) -> float:
        return self.arrivals[0][0] - self.asked

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks: what a reader waits. A round of speculation brings several tokens in one chunk."""
        times = [at for at, _ in self.arrivals]
        return [after - before for before, after in pairwise(times)]


def open_loop(lab: Lab, setting: Setting, streams: int, *, prefix_caching: bool = False) -> Engine:
    """A decode loop of the version's settings, with a batch of at least `streams`."""
    parts = lab.parts
    batch = max(streams, parts.settings.max_batch_size)
    settings = replace(
        parts.settings,
        proposer=setting.method,
        max_draft_tokens=max(1, setting.draft_tokens),
        prefix_caching=prefix_caching,
        max_batch_size=batch,
        max_num_tokens=max(batch, parts.settings.max_num_tokens),
    )
    draft = parts.draft if setting.method in ("draft_model", "hybrid") else None
    return Engine(parts.target, draft, settings, eos_token_ids=parts.eos_token_ids, draft_exit=parts.draft_exit)


def ask(engine: Engine, prompt: Sequence[int], answer: int | SamplingParams) -> Stream:
    """Queue an answer, a greedy one of exactly so many tokens where only that is said; `run` brings it."""
    stream = Stream(time.perf_counter())
    sampling = SamplingParams(max_tokens=answer, ignore_eos=True) if isinstance(answer, int) else answer
    engine.submit(Request(f"stream-{next(_NAMES)}", tuple(prompt), sampling), partial(_arrive, stream))
    return stream


def run(engine: Engine, streams: Sequence[Stream], until: Callable[[], bool] | None = None) -> None:
    """Step until all streams have ended, or `until` says so. EngineError when one failed."""
    while engine.step():
        if until is not None and until():
            return
    if any(stream.stats is None or not stream.arrivals for stream in streams):
        raise EngineError("a benchmark request failed before its end", mend="The log above names the cause")


@dataclass(frozen=True)
class Span:
    """Streams of which so many ran at any moment from `began` to `ended`."""

    streams: Sequence[Stream]
    began: float
    ended: float

    @property
    def tokens_per_second(self) -> float:
        tokens = sum(count for stream in self.streams for at, count in stream.arrivals if at <= self.ended)
        return tokens / (self.ended - self.began)


def burst(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> Span:
    """All prompts at once, up to the last token of the last."""
    streams = [ask(engine, prompt, tokens) for prompt in prompts]
    run(engine, streams)
    return Span(streams, min(stream.asked for stream in streams), max(stream.arrivals[-1][0] for stream in streams))


def sustain(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, level: int) -> Span:
    """`level` streams at once, each that ends replaced by the next prompt, up to the first end that finds none left.

    Answers of one length drift apart when drafts are kept more or less often: a burst ends with a few of them alone, these do not.
    """
    left = iter(prompts)
    streams = [ask(engine, prompt, tokens) for prompt in islice(left, level)]
    running, ended = list(streams), 0.0
    while running:
        engine.step()
        for stream in [stream for stream in running if stream.stats is not None]:
            running.remove(stream)
            prompt = next(left, None)
            if prompt is not None:
                running.append(ask(engine, prompt, tokens))
                streams.append(running[-1])
            elif not ended:
                ended = stream.arrivals[-1][0] if stream.arrivals else 0.0
    run(engine, streams)
    return Span(streams, streams[0].asked, ended)


def _arrive(stream: Stream, output: Output) -> None:
    if output.token_ids:
        stream.arrivals.append((time.perf_counter(), len(output.token_ids)))
    stream.stats = output.stats or stream.stats


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; 0.0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
