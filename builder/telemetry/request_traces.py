"""The decode model's part of a trace: the request and its phases, put together once it has ended."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.runtime.request import Output, Request
from builder.runtime.steps import StepObserver
from builder.spec.tracing import Tracing
from builder.telemetry import span_names as names
from builder.telemetry.spans import Attributes, Spans, open_spans
from builder.telemetry.timeline import Phase, Timeline, Timelines

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Interval = tuple[int, int]  # nanoseconds since 1970


def open_request_traces(
    tracing: Tracing, observe_steps: Callable[[StepObserver], None], *, model: str, version: str
) -> RequestTraces | NoTraces:
    """Where nothing is traced, the engine is not asked to tell anybody of its steps."""
    spans = open_spans(tracing, model=model, version=version)
    if spans is None:
        return NoTraces()
    traces = RequestTraces(spans, model=model, version=version)
    observe_steps(traces.timelines)
    return traces


class NoTraces:
    """Follows nobody."""

    def begin(self, request: Request, traceparent: str | None, tokenized: Interval | None) -> str:  # noqa: ARG002 - RequestTraces's
        return ""

    def refuse(self, request: Request, error: Exception) -> None: ...
    def note(self, output: Output) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class Traced:
    request: Request
    root: Span
    tokenized: Interval | None
    offset: int  # nanoseconds from the monotonic clock to that of the spans
    last: list[Output] = field(default_factory=list)  # of the answers that have ended
    ended: int = 0  # when the last of them did

    def at(self, seconds: float) -> int:
        return self.offset + round(seconds * 1e9)


class RequestTraces:
    """`begin` may be called by any thread, `note` by one, `flush` by another. Spans are made in `flush`, away from the answers' way."""

    def __init__(self, spans: Spans, *, model: str, version: str) -> None:
        self.timelines = Timelines()
        self._spans = spans
        self._common: Attributes = {names.MODEL: model, names.VERSION: version}
        self._live: dict[str, Traced] = {}
        self._ended: list[tuple[Traced, Timeline]] = []
        self._lock = threading.Lock()  # guards _ended

    def begin(self, request: Request, traceparent: str | None, tokenized: Interval | None) -> str:
        """Before it is submitted. The root's own `traceparent`, or "" when the request is not sampled."""
        offset = time.time_ns() - time.monotonic_ns()
        start = tokenized[0] if tokenized else offset + round(request.arrival * 1e9)
        root = self._spans.start(names.REQUEST, start, traceparent, {**self._common, names.TENANT: request.tenant})
        if not root.is_recording():
            return ""
        self._live[request.id] = Traced(request, root, tokenized, offset)
        self.timelines.open(request.id)
        return self._spans.traceparent(root)

    def refuse(self, request: Request, error: Exception) -> None:
        """It was not taken."""
        traced = self._live.pop(request.id, None)
        if traced is not None:
            self.timelines.close(request.id)
            traced.root.set_attribute(names.ERROR, type(error).__name__)
            traced.root.end()

    def note(self, output: Output) -> None:
        """A chunk on its way out. The request's trace ends with the last one of its last answer."""
        if output.finish_reason is None or (traced := self._live.get(output.request_id)) is None:
            return
        traced.last.append(output)
        traced.ended = time.time_ns()
        if len(traced.last) == traced.request.sampling.n:
            del self._live[output.request_id]
            with self._lock:
                self._ended.append((traced, self.timelines.close(output.request_id)))

    def flush(self) -> None:
        """Hand the spans of ended requests to the exporter."""
        with self._lock:
            ended, self._ended = self._ended, []
        for traced, timeline in ended:
            self._emit(traced, timeline)

    def close(self) -> None:
        """After the last chunk: a request without one has no trace."""
        self.flush()
        self._spans.close()

    def _emit(self, traced: Traced, timeline: Timeline) -> None:
        """The root last: whoever has it has the others."""
        parent = self._spans.traceparent(traced.root)
        if traced.tokenized is not None:
            self._spans.add(names.TOKENIZE, *traced.tokenized, parent, {names.TOKENS: len(traced.request.prompt_ids)})
        first = timeline.first_pass
        self._spans.add(names.QUEUE, traced.at(traced.request.arrival), traced.ended if first is None else traced.at(first), parent, {})
        for phase in timeline.phases:
            self._spans.add(phase.name, traced.at(phase.start), traced.at(phase.end), parent, _attributes(phase))
        traced.root.set_attributes(_outcome(traced))
        traced.root.end(traced.ended)


def _attributes(phase: Phase) -> Attributes:
    return {names.SAMPLE: phase.sample, names.COUNT: phase.count, names.BUSY: round(phase.busy, 6), **phase.values}


def _outcome(traced: Traced) -> dict[str, str | int | list[str]]:
    """How it ended and what it used: counts and words of closed sets."""
    usages = [output.usage for output in traced.last if output.usage is not None]
    stats = [output.stats for output in traced.last if output.stats is not None]
    found: dict[str, str | int | list[str]] = {
        names.INPUT_TOKENS: len(traced.request.prompt_ids),
        names.OUTPUT_TOKENS: sum(usage.completion_tokens for usage in usages),
        names.CACHED_TOKENS: sum(usage.cached_tokens for usage in usages),
        names.DRAFTED: sum(s.num_draft_tokens for s in stats),
        names.ACCEPTED: sum(s.num_accepted_draft_tokens for s in stats),
        names.FINISH_REASONS: [str(output.finish_reason) for output in traced.last],
    }
    if stats:
        found[names.OPTIMISATION] = next((s.optimisation for s in stats if s.optimisation != "plain"), "plain")
    layers = sum((Counter(s.exit_layers) for s in stats), Counter[int]())
    if layers:
        found[names.EXIT_LAYERS] = [f"{layer}: {tokens}" for layer, tokens in sorted(layers.items())]
    if any(output.error for output in traced.last):
        found[names.ERROR] = "engine"
    return found
