"""One request's way back to Triton: chunks from the engine become responses, the last one exactly once."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict
from typing import Any

import triton_python_backend_utils as pb_utils

from builder.repository.models.tensors import error_response, int_tensor, text_tensor
from builder.runtime.request import DecodeStats, FinishReason, Output, Usage

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Answer:
    """Streams responses `interval` seconds apart or more, or keeps all chunks for one response at the end (HTTP `generate` wants
    exactly one). `add` and `flush` are for one thread."""

    def __init__(self, sender: Any, client_id: str, stream: bool, version: str, interval: float = 0.0, tenant: str = "other") -> None:
        self.client_id = client_id
        self.tenant = tenant
        self._sender = sender
        self._stream = stream
        self._version = version
        self._interval = interval
        self._next_send = 0.0  # monotonic clock
        self._waiting: list[Output] = []
        self._closed = False
        # Tritonserver 2.51 crashes when is_cancelled() is called after the final response: both hold this lock
        self._lock = threading.Lock()

    def add(self, output: Output) -> None:
        if output.finish_reason is FinishReason.ERROR:
            self.fail(RuntimeError(output.error or "the engine failed"), output.error)
            return
        self._waiting.append(output)
        final = output.finish_reason is not None
        if final or (self._stream and time.monotonic() >= self._next_send):
            self.flush()

    @property
    def due(self) -> float | None:
        """When held chunks must go (monotonic clock); None when there are none, or they wait for the end."""
        return self._next_send if self._stream and self._waiting else None

    def flush(self) -> None:
        """Send what is held as one response."""
        chunks, self._waiting = self._waiting, []
        self._next_send = time.monotonic() + self._interval
        self._send(_response(chunks, self._version), final=chunks[-1].finish_reason is not None)

    def fail(self, error: Exception, reason: str | None = None) -> None:
        """End with an error; `reason` is a text for the user in place of the error's own."""
        response = error_response(error)
        if reason:
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(f"the engine failed: {reason}", pb_utils.TritonError.INTERNAL))
        self._send(response, final=True)

    def consumer_gone(self) -> bool:
        """Whether Triton was told that nobody waits. Reaches a decode model called directly, not one inside an ensemble."""
        with self._lock:
            return not self._closed and bool(self._sender.is_cancelled())

    def _send(self, response: Any, final: bool) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = final
            self._sender.send(response, flags=FINAL if final else 0)


def _response(chunks: list[Output], version: str) -> Any:
    """Tensors of DECODE_OUTPUTS for consecutive chunks; usage and decode_stats only in an answer's last response."""
    last = chunks[-1]
    rows = [(len(chunk.context_ids), len(chunk.token_ids), chunk.text_limit) for chunk in chunks]
    logprobs = [scores for chunk in chunks for scores in chunk.logprobs]
    return pb_utils.InferenceResponse(
        [
            int_tensor("token_ids", [token for chunk in chunks for token in chunk.token_ids]),
            int_tensor("context_ids", [token for chunk in chunks for token in chunk.context_ids]),
            int_tensor("chunks", rows, (-1, 3)),
            text_tensor("token_logprobs", json.dumps(logprobs) if logprobs else ""),
            text_tensor("finish_reason", last.finish_reason or ""),
            text_tensor("usage", usage_json(last.usage) if last.usage else ""),
            text_tensor("decode_stats", stats_json(last.stats, version) if last.stats else ""),
        ]
    )


def usage_json(usage: Usage) -> str:
    """OpenAI's shape."""
    return json.dumps(
        {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
    )


def stats_json(stats: DecodeStats, version: str) -> str:
    """Counts of the request, and the two rates that follow from them. Times in seconds."""
    return json.dumps(
        {
            **asdict(stats),
            "draft_acceptance_rate": round(stats.draft_acceptance_rate, 4),
            "mean_acceptance_length": round(stats.mean_acceptance_length, 4),
            "version": version,
        }
    )
