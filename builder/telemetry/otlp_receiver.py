"""The smallest collector: takes traces over OTLP/HTTP on this machine and keeps them until they are asked for."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

PATH = "/v1/traces"
HOST = "127.0.0.1"


@dataclass(frozen=True)
class ReceivedSpan:
    """Ids are hexadecimal, times nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start: int
    end: int
    attributes: dict[str, Any]


class OtlpReceiver:
    """Context manager: listens inside, on a free port unless one is given. OSError when that is taken."""

    def __init__(self, port: int = 0, path: str = PATH) -> None:
        self._spans: list[ReceivedSpan] = []
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path != path:
                    self.send_error(404)
                    return
                receiver._take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Not on the terminal."""

        self._server = ThreadingHTTPServer((HOST, port), Handler)
        self.endpoint = f"http://{HOST}:{self._server.server_port}{path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self, trace_id: str, names: Collection[str], timeout: float) -> list[ReceivedSpan]:
        """Those of a trace by start, the longest first, once all these names are among them. TimeoutError after so many seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                found = [span for span in self._spans if span.trace_id == trace_id]
                if {span.name for span in found} >= set(names):
                    return sorted(found, key=lambda span: (span.start, -span.end))
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise TimeoutError(f"{len(found)} spans of trace {trace_id} came in {timeout:.0f} s")

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        found = [span for part in request.resource_spans for scope in part.scope_spans for span in scope.spans]
        with self._changed:
            self._spans += [_received(span) for span in found]
            self._changed.notify_all()


def _received(span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        {item.key: _value(item.value) for item in span.attributes},
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
