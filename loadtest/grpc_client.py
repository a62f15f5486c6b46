"""Triton's ModelStreamInfer, on one kept channel.

The stub is used as it is: tritonclient's stream hands answers over through a thread, whose switch would be measured too.
"""

from __future__ import annotations

import struct
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from loadtest.ask import Ask, Target
from loadtest.http_client import TIMEOUT, cancel
from loadtest.reply import Reply

REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


class GrpcClient:
    def __init__(self, target: Target) -> None:
        self._target = target
        # A channel of its own: gRPC shares connections between equal channels, but users do not share one
        self._channel = grpc.insecure_channel(target.grpc, options=[("grpc.use_local_subchannel_pool", 1)])
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def ask(self, ask: Ask) -> Reply:
        reply = Reply()
        call = self._stub.ModelStreamInfer(iter([_request(ask, self._target.model)]), timeout=TIMEOUT, wait_for_ready=False)
        cancelled = False
        try:
            for response in call:
                if response.error_message:
                    reply.refuse(response.error_message)
                    continue
                reply.take(_fields(response.infer_response))
                if len(reply.chunk_times) < ask.fault_after or reply.outcome != "failed":
                    continue
                if ask.fault == "disconnect":
                    reply.outcome = "left"
                    call.cancel()
                    break
                if ask.fault == "cancel" and not cancelled:
                    cancelled = True
                    cancel(self._target, ask.id)
        except grpc.RpcError as error:
            say = reply.refuse if error.code() in REFUSALS and error.details() and "connect" not in error.details() else reply.fail
            say(f"{error.code().name}: {error.details()}")
        return reply

    def close(self) -> None:
        self._channel.close()


def _request(ask: Ask, model: str) -> Any:
    request = pb.ModelInferRequest(model_name=model, id=ask.id)
    for name, text in ask.inputs.items():
        data = text.encode("utf-8")
        request.inputs.add(name=name, datatype="BYTES", shape=[1])
        request.raw_input_contents.append(struct.pack("<I", len(data)) + data)
    for name, value in {"stream": True, **ask.parameters}.items():
        parameter = request.parameters[name]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            parameter.int64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = value
    return request


def _fields(response: Any) -> dict[str, str]:
    """The texts of a response's one-element BYTES tensors: four bytes of length, then UTF-8."""
    return {
        output.name: raw[4:].decode("utf-8")
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        if output.datatype == "BYTES"
    }
