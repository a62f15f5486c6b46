"""One request's way back to Triton: chunks from the engine become responses, the last one exactly once."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Any

import triton_python_backend_utils as pb_utils

from builder.repository.models.responses import response
from builder.repository.models.tensors import error_response, error_with_code
from builder.runtime.request import Cancellation, FinishReason, Output, Usage

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Answer:
    """Streams responses `interval` seconds apart or more, or keeps all chunks for one response at the end (HTTP `generate` wants
    exactly one). A streamed response belongs to one of the request's `samples`. `add` and `flush` are for one thread."""

    def __init__(
        self, sender: Any, client_id: str, stream: bool, version: str, interval: float = 0.0, samples: int = 1, tenant: str = "other"
    ) -> None:
        self.client_id = client_id
        self.tenant = tenant
        self.traceparent = ""  # of the request's span, when it is traced
        self.key = secrets.randbits(31)  # by which detokenize names it when it finds that nobody listens
        self._sender = sender
        self._stream = stream
        self._version = version
        self._interval = interval
        self._next_send = [0.0] * samples  # monotonic clock
        self._held: list[list[Output]] = [[] for _ in range(samples)]
        self._left = samples
        self._usage = Usage(0, 0)
        self._closed = False
        # Tritonserver 2.51 crashes when is_cancelled() is called after the final response: both hold this lock
        self._lock = threading.Lock()

    def add(self, output: Output) -> None:
        self._left -= output.finish_reason is not None
        if output.finish_reason is FinishReason.ERROR:
            self._fail("INTERNAL", f"the engine failed: {output.error or 'no reason given'}")
            return
        if output.cancellation is Cancellation.SHUTDOWN:
            self._fail("UNAVAILABLE", "the model was unloaded before the answer was complete. Send the request again.")
            return
        if output.usage is not None:
            self._usage += output.usage
        self._held[output.index].append(output)
        if not self._stream:
            self._finish_whole()
        elif output.finish_reason is not None or time.monotonic() >= self._next_send[output.index]:
            self._flush(output.index)

    @property
    def complete(self) -> bool:
        """Whether the engine has nothing more for it."""
        return self._left == 0

    @property
    def failed(self) -> bool:
        """Whether it was closed while the engine still works on it."""
        return self._closed and self._left > 0

    @property
    def due(self) -> float | None:
        """When held chunks must go (monotonic clock); None when there are none, or they wait for the end."""
        dues = [at for at, held in zip(self._next_send, self._held, strict=True) if held] if self._stream else []
        return min(dues, default=None)

    def flush(self) -> None:
        """Send what is held and due."""
        now = time.monotonic()
        for index, held in enumerate(self._held):
            if held and self._next_send[index] <= now:
                self._flush(index)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self._send(error_response(error), final=True)

    def consumer_gone(self) -> bool:
        """Whether Triton was told that nobody waits. Reaches a decode model called directly, not one inside an ensemble."""
        with self._lock:
            return not self._closed and bool(self._sender.is_cancelled())

    def _flush(self, index: int) -> None:
        chunks, self._held[index] = self._held[index], []
        self._next_send[index] = time.monotonic() + self._interval
        if self._timed_out_empty([chunks]):
            return
        usage = self._usage if self.complete else None
        self._send(response([chunks], self.key, usage, self._version, self.traceparent), final=self.complete)

    def _finish_whole(self) -> None:
        if self.complete and not self._timed_out_empty(self._held):
            self._send(response(self._held, self.key, self._usage, self._version, self.traceparent), final=True)

    def _timed_out_empty(self, samples: list[list[Output]]) -> bool:
        """An answer without a token is no answer: a request whose time ran out before its first one ends with an error."""
        out = self.complete and not self._usage.completion_tokens and samples[-1][-1].finish_reason is FinishReason.TIMEOUT
        if out:
            self._fail("CANCELLED", "timeout_ms: the time was over before the first token. Send it later, or give more time.")
        return out

    def _fail(self, code: str, text: str) -> None:
        self._send(error_with_code(code, text), final=True)

    def _send(self, reply: Any, final: bool) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = final
            self._sender.send(reply, flags=FINAL if final else 0)
