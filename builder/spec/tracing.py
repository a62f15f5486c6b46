"""`tracing`: which requests leave a trace, and where it goes."""

from __future__ import annotations

from pydantic import Field

from builder.spec.section import Section


class Tracing(Section):
    """Spans of single requests, sent to an OpenTelemetry collector. Never prompts or answers."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s]+$",
        description="Where the collector takes traces over OTLP/HTTP, such as http://127.0.0.1:4318/v1/traces; null means no tracing. "
        "Where the server's environment has OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, that goes before.",
    )
    sample: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the requests that are traced. A request that brings a `traceparent` brings that decision too.",
    )
