"""A model on Triton's tensorrtllm backend, called through the server's own gRPC port.

Not by a call inside the server (BLS): docs/decisions.md says why. One gRPC stream for each request, so that a request can be ended alone:
closing the stream marks it as cancelled, and the backend looks for such requests every cancellation_check_period_ms.
`end_id` is never sent: the engine then takes an end-of-sequence token for any other, and the decode loop, which may know several,
ends the answer there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc.aio as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from builder.errors import EngineError
from builder.runtime.engine_model import EngineCall, EngineReply, Replies

OUTPUTS = ("output_ids", "sequence_length")
LOGITS = "generation_logits"


class Connection:
    """To one server. Made when it is first needed, in the event loop that needs it, where it belongs from then on."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Any = None

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = triton.InferenceServerClient(self._address)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


class EngineClient:
    """An EngineModel: one model of the server behind the connection."""

    def __init__(self, connection: Connection, model: str) -> None:
        self._connection = connection
        self._model = model

    async def generate(self, call: EngineCall) -> Replies:
        """One reply, or with `streams` one for each token. EngineError when the server cannot be reached or refuses."""
        stream = self._connection.client.stream_infer(_once(self._request(call)))
        try:
            async with aclosing(_results(stream)) as results:
                async for result in results:
                    if (reply := _reply(result, logits=call.returns_logits)).token_ids:
                        yield reply
        except (InferenceServerException, grpc.RpcError) as error:
            raise EngineError(_told(error), where=self._model, mend="The server's log has more") from error
        finally:
            stream.cancel()  # nothing happens to one that has ended

    def _request(self, call: EngineCall) -> dict[str, Any]:
        wanted = (*OUTPUTS, LOGITS) if call.returns_logits else OUTPUTS
        return {
            "model_name": self._model,
            "inputs": [_input(name, value) for name, value in tensors(call).items()],
            "outputs": [triton.InferRequestedOutput(name) for name in wanted],
        }


def tensors(call: EngineCall) -> dict[str, NDArray[Any]]:
    """The inputs of a call by name, each with a batch of one in front. The draft's logits keep their type, which is the engine's."""
    sampling = call.sampling
    named: dict[str, NDArray[Any]] = {
        "input_ids": np.array([call.token_ids], np.int32),
        "input_lengths": np.array([[len(call.token_ids)]], np.int32),
        "request_output_len": np.array([[call.max_tokens]], np.int32),
        "streaming": np.array([[call.streams]]),
    }
    if sampling.greedy:
        named["runtime_top_k"] = np.array([[1]], np.int32)
    else:
        named["temperature"] = np.array([[sampling.temperature]], np.float32)
        named["runtime_top_p"] = np.array([[sampling.top_p]], np.float32)
        named["runtime_top_k"] = np.array([[sampling.top_k]], np.int32)
    if call.seed is not None:
        named["seed"] = np.array([[call.seed]], np.uint64)
    if sampling.repetition_penalty != 1.0:
        named["repetition_penalty"] = np.array([[sampling.repetition_penalty]], np.float32)
    if call.draft:
        named["draft_input_ids"] = np.array([call.draft], np.int32)
    if call.draft_logits is not None:
        named["draft_logits"] = call.draft_logits[None]
    if call.returns_logits:
        named["return_generation_logits"] = np.array([[True]])
    return named


def _input(name: str, value: NDArray[Any]) -> Any:
    tensor = triton.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
    tensor.set_data_from_numpy(value)
    return tensor


async def _once(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The stream's only request; its end tells the server that no more will come."""
    yield request


async def _results(stream: Any) -> AsyncGenerator[Any, None]:
    async for result, error in stream:
        if error is not None:
            raise error
        yield result


def _reply(result: Any, *, logits: bool) -> EngineReply:
    """output_ids [1, beams, tokens], of which sequence_length [1, beams] are real; generation_logits [1, beams, tokens, V]."""
    ids, lengths = result.as_numpy("output_ids"), result.as_numpy("sequence_length")
    if ids is None or lengths is None:  # the empty response that may end a request
        return EngineReply(())
    count = int(lengths[0, 0])
    rows = result.as_numpy(LOGITS) if logits else None
    return EngineReply(tuple(ids[0, 0, :count].tolist()), None if rows is None else rows[0, 0, :count])


def _told(error: Exception) -> str:
    if isinstance(error, InferenceServerException):
        return str(error.message())
    return str(getattr(error, "details", lambda: error)())
