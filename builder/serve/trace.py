"""One traced request: asked with a trace of its own, and the spans that its server sent."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from builder.errors import ServeError
from builder.serve.client import Parameters, generate
from builder.serve.ports import free_ports
from builder.serve.triton import Triton, model_ready
from builder.spec.addresses import reachable
from builder.spec.pipeline import PipelineSpec
from builder.telemetry import span_names as names
from builder.telemetry.otlp_receiver import OtlpReceiver, ReceivedSpan
from builder.telemetry.spans import ENDPOINT

ARRIVAL_SECONDS = 30.0  # for spans to come; an exporter that found nobody listening tries again after some seconds
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CLIENT = "client"  # our own span, around the request's


@dataclass(frozen=True)
class Waterfall:
    """`spans` in order of their start, the client's first. Times in nanoseconds since 1970."""

    trace_id: str
    spans: tuple[ReceivedSpan, ...]

    def to_json(self) -> dict[str, Any]:
        zero = self.spans[0].start
        rows = [
            {
                "name": span.name,
                "span_id": span.span_id,
                "parent_id": span.parent_id,
                "start_ms": (span.start - zero) / 1e6,
                "duration_ms": (span.end - span.start) / 1e6,
                "attributes": span.attributes,
            }
            for span in self.spans
        ]
        return {"trace_id": self.trace_id, "spans": rows}


@dataclass(frozen=True)
class Traced:
    """Where to ask, and who gets the spans."""

    url: str  # host:port of gRPC
    receiver: OtlpReceiver


@contextmanager
def traced_server(spec: PipelineSpec, repository: Path, on_progress: Callable[[str], None]) -> Iterator[Traced]:
    """The running server, where its spans can be had; else one of its own, on free ports, that sends them here.

    A running server's can be had when `tracing.endpoint` is on this machine and nobody listens there. ServeError when Triton fails.
    """
    name, serving = spec.metadata.name, spec.serving
    with ExitStack() as stack:
        receiver = _in_its_place(spec) if model_ready(serving.host, serving.http_port, name) else None
        if receiver is not None:
            yield Traced(f"{reachable(serving.host)}:{serving.grpc_port}", stack.enter_context(receiver))
            return
        on_progress("starting a server of its own, whose spans come here")
        receiver = stack.enter_context(OtlpReceiver())
        ports = free_ports()
        stack.enter_context(Triton(repository, name, ports, variables={ENDPOINT: receiver.endpoint}))
        yield Traced(f"127.0.0.1:{ports['grpc']}", receiver)


def _in_its_place(spec: PipelineSpec) -> OtlpReceiver | None:
    """A receiver where the running server's collector would be."""
    endpoint = urlsplit(spec.tracing.endpoint or "")
    if endpoint.scheme != "http" or endpoint.hostname not in LOOPBACK:
        return None
    try:
        return OtlpReceiver(endpoint.port or 80, endpoint.path)
    except OSError:
        return None  # a collector listens


def trace_request(server: Traced, model: str, parameters: Parameters, **asked: Any) -> Waterfall:
    """Ask and wait for the spans. RequestError when the request is refused, ServeError when no spans come."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    began, tokens = time.time_ns(), 0
    for chunk in generate(server.url, model, parameters={**parameters, "traceparent": f"00-{trace_id}-{span_id}-01"}, **asked):
        tokens = chunk.usage["completion_tokens"] if chunk.usage else tokens
    ended = time.time_ns()
    try:
        spans = server.receiver.spans(trace_id, (names.REQUEST, names.DETOKENIZE), ARRIVAL_SECONDS)
    except TimeoutError as error:
        raise ServeError(str(error), where=server.receiver.endpoint, mend="Look into the server's log") from error
    client = ReceivedSpan(trace_id, span_id, "", CLIENT, began, ended, {names.OUTPUT_TOKENS: tokens})
    return Waterfall(trace_id, (client, *spans))
