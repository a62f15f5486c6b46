"""The OpenTelemetry SDK as far as it is used here. Only `open_spans` imports it: a server that traces nothing never loads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from builder.spec.tracing import Tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"  # OpenTelemetry's variable for deployments
EXPORT_PERIOD = 0.5  # seconds between two exports
EXPORT_TIMEOUT = 5.0  # seconds; finalize waits for the last one, and Triton for finalize
INSTRUMENTATION = "tandem"

Value = str | int | float | bool | list[str]
Attributes = Mapping[str, Value]


def endpoint_of(tracing: Tracing) -> str | None:
    """Where spans go; None: nothing is traced."""
    return os.environ.get(ENDPOINT) or tracing.endpoint


def open_spans(tracing: Tracing, *, model: str, version: str) -> Spans | None:
    """None, and no import, where nothing is traced."""
    endpoint = endpoint_of(tracing)
    if endpoint is None:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(tracing.sample)),
        resource=Resource.create({"service.name": model, "service.version": version}),
    )
    exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_TIMEOUT)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_PERIOD * 1e3))
    return Spans(provider)


class Spans:
    """Spans with given times: nanoseconds since 1970. Parents are named by their W3C `traceparent`; one that breaks that format, as
    the standard wants, begins a new trace."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer(INSTRUMENTATION)
        self._propagator = TraceContextTextMapPropagator()

    def start(self, name: str, start: int, parent: str | None, attributes: Attributes) -> Span:
        """It records nothing when its trace is not sampled."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        context = self._propagator.extract({"traceparent": parent or ""}, context=Context())
        return self._tracer.start_span(name, context, kind=SpanKind.SERVER, attributes=attributes, start_time=start)

    def add(self, name: str, start: int, end: int, parent: str, attributes: Attributes) -> None:
        """A span that has ended."""
        from opentelemetry.context import Context

        context = self._propagator.extract({"traceparent": parent}, context=Context())
        self._tracer.start_span(name, context, attributes=attributes, start_time=start).end(end)

    def traceparent(self, span: Span) -> str:
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return carrier["traceparent"]

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
