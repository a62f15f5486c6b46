"""The detokenize model's part of a trace: one span an answer, since a streamed one has tens of chunks a second."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from builder.telemetry import span_names as names
from builder.telemetry.spans import Spans

MOST_OPEN = 256  # answers between first and last chunk; one that was cut off never has its last


@dataclass
class Work:
    """Nanoseconds since 1970; `busy` without the time between chunks."""

    start: int
    end: int = 0
    busy: int = 0
    chunks: int = 0


class DetokenizeTraces:
    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._open: OrderedDict[str, Work] = OrderedDict()  # by `traceparent` of the request's root span

    def add(self, traceparent: str, start: int, end: int, *, last: bool) -> None:
        """A chunk of a sampled request."""
        work = self._open.setdefault(traceparent, Work(start))
        work.end, work.busy, work.chunks = end, work.busy + end - start, work.chunks + 1
        if last:
            self._emit(traceparent)
        elif len(self._open) > MOST_OPEN:
            self._emit(next(iter(self._open)))

    def close(self) -> None:
        for traceparent in list(self._open):
            self._emit(traceparent)
        self._spans.close()

    def _emit(self, traceparent: str) -> None:
        work = self._open.pop(traceparent)
        attributes = {names.COUNT: work.chunks, names.BUSY: work.busy / 1e9}
        self._spans.add(names.DETOKENIZE, work.start, work.end, traceparent, attributes)
