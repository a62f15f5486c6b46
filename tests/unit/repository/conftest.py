"""A stand-in for triton_python_backend_utils, which exists only inside Triton's stub process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest


class Tensor:
    def __init__(self, name: str, values: np.ndarray) -> None:
        self.name, self._values = name, values

    def as_numpy(self) -> np.ndarray:
        return self._values


class TritonError:
    INVALID_ARG, INTERNAL, UNAVAILABLE, CANCELLED = "invalid", "internal", "unavailable", "cancelled"

    def __init__(self, message: str, code: str) -> None:
        self.message, self.code = message, code


class Response:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.tensors = {tensor.name: tensor.as_numpy() for tensor in output_tensors or []}
        self.error = error

    def text(self, name: str) -> str:
        return self.tensors[name][0].decode()


class Sender:
    """Crashes like tritonserver 2.51 when asked about cancellation after the final response."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self.final = threading.Event()
        self.cancelled = False

    def send(self, response: Response, flags: int = 0) -> None:
        if self.final.is_set():
            raise AssertionError("a response after the final one")
        self.responses.append(response)
        if flags:
            self.final.set()

    def is_cancelled(self) -> bool:
        if self.final.is_set():
            raise AssertionError("tritonserver would crash")
        return self.cancelled


class Request:
    def __init__(self, parameters: str = "{}", request_id: str = "", **tensors: Any) -> None:
        self._parameters, self._id, self.sender = parameters, request_id, Sender()
        self.tensors = {name: Tensor(name, np.asarray(values)) for name, values in tensors.items()}

    def parameters(self) -> str:
        return self._parameters

    def request_id(self) -> str:
        return self._id

    def get_response_sender(self) -> Sender:
        return self.sender


class MetricFamily:
    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

    def __init__(self, name: str, description: str, kind: str) -> None: ...

    def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> MetricFamily:
        return self

    def increment(self, value: float) -> None: ...
    def set(self, value: float) -> None: ...
    def observe(self, value: float) -> None: ...


def _backend_utils() -> ModuleType:
    module: Any = ModuleType("triton_python_backend_utils")
    module.Tensor, module.TritonError, module.InferenceResponse, module.MetricFamily = Tensor, TritonError, Response, MetricFamily
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    module.get_input_tensor_by_name = lambda request, name: request.tensors.get(name)
    silent = staticmethod(lambda text: None)
    module.Logger = type("Logger", (), {"log_error": silent, "log_warn": silent, "log_info": silent})
    return module


@pytest.fixture(scope="module", autouse=True)
def triton_python_backend_utils() -> Iterator[ModuleType]:
    module = sys.modules["triton_python_backend_utils"] = _backend_utils()
    yield module
    for name in [name for name in sys.modules if name.startswith("builder.repository.models.")]:
        del sys.modules[name]  # they hold the stand-in
    del sys.modules["triton_python_backend_utils"]


@pytest.fixture
def make_request() -> type[Request]:
    return Request
