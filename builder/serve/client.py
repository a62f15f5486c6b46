"""A streaming client of the ensemble over gRPC."""

from __future__ import annotations

import json
import queue
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from builder.errors import RequestError, ServeError

START = "Start it with `builder serve`"

Parameters = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Chunk:
    """A piece of the text of answer `index`, the last piece with finish_reason and decode_stats. The last of all has usage."""

    text: str
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    decode_stats: dict[str, Any] | None = None
    logprobs: list[dict[str, Any]] | None = None
    index: int = 0


def generate(
    url: str,
    model: str,
    *,
    prompt: str | None = None,
    messages: Sequence[Mapping[str, str]] | None = None,
    parameters: Parameters | None = None,
    request_id: str | None = None,
    timeout: float = 300.0,
) -> Iterator[Chunk]:
    """Chunks of one answer as they come; `url` is host:port of the gRPC endpoint, `timeout` seconds between two chunks.

    Leaving the iterator early stops the request on the server. RequestError when the server refuses the request,
    ServeError when it cannot be reached or falls silent.
    """
    request_id = request_id or uuid.uuid4().hex
    answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
    client = triton.InferenceServerClient(url)
    done = False
    try:
        client.start_stream(lambda result, error: answers.put((result, error)))
        inputs = [_text_input("text_input", prompt)] if prompt is not None else []
        if messages is not None:
            inputs.append(_text_input("messages", json.dumps(list(messages))))
        client.async_stream_infer(model, inputs, request_id=request_id, parameters={"stream": True, **(parameters or {})})
        while not done:
            chunk = _receive(answers, url, timeout)
            done = chunk.usage is not None
            yield chunk
    except RequestError:
        done = True
        raise
    except InferenceServerException as error:  # the stream broke before the request was on it; the cause is what it reported
        done = True
        cause = error if answers.empty() else answers.get()[1] or error
        raise ServeError(f"cannot be reached ({cause})", where=url, mend=START) from error
    finally:
        client.stop_stream(cancel_requests=not done)
        client.close()
        if not done:  # closing the stream does not reach a model inside an ensemble
            _cancel_quietly(url, model, request_id)


def cancel(url: str, model: str, request_id: str, timeout: float = 10.0) -> None:
    """Stop a running request by its id. RequestError when there is none."""
    for _ in generate(url, model, parameters={"cancel": request_id}, timeout=timeout):
        pass


def _cancel_quietly(url: str, model: str, request_id: str) -> None:
    try:
        cancel(url, model, request_id, timeout=2.0)
    except (RequestError, ServeError):
        return  # it ended by itself, or the server did


def _receive(answers: queue.SimpleQueue[tuple[Any, Exception | None]], url: str, timeout: float) -> Chunk:
    try:
        result, error = answers.get(timeout=timeout)
    except queue.Empty:
        raise ServeError(f"no answer for {timeout:.0f} s", where=url, mend="Look into the server's log") from None
    if error is not None:
        raise _translate(error, url) from error
    texts = {name: _text_output(result, name) for name in ("text_output", "finish_reason", "usage", "decode_stats", "logprobs")}
    documents = {name: json.loads(texts[name]) if texts[name] else None for name in ("usage", "decode_stats", "logprobs")}
    return Chunk(texts["text_output"], texts["finish_reason"] or None, **documents, index=int(result.as_numpy("index")[0]))


def _translate(error: Exception, url: str) -> RequestError | ServeError:
    text = error.message() if isinstance(error, InferenceServerException) else str(error)
    status = error.status() if isinstance(error, InferenceServerException) else None
    if text.startswith("in ensemble "):
        return RequestError(text.partition(", ")[2])
    if status in (None, "StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND"):  # an error inside the stream carries no status
        return RequestError(text)
    return ServeError(f"cannot be reached ({text})", where=url, mend=START)


def _text_input(name: str, text: str) -> Any:
    tensor = triton.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode("utf-8")], dtype=np.object_))
    return tensor


def _text_output(result: Any, name: str) -> str:
    values = result.as_numpy(name)
    return values.reshape(-1)[0].decode("utf-8") if values is not None and values.size else ""
