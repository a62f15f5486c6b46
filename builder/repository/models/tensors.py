"""Triton's tensors as Python values and back. Imported only inside Triton's stub process."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from builder.errors import EngineError, OverloadError, TandemError


def read_bytes(request: Any, name: str) -> bytes | None:
    """A BYTES tensor of one element; None when the request does not carry it."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    values = tensor.as_numpy().reshape(-1)
    return _bytes(values[0]) if len(values) else b""


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def read_texts(request: Any, name: str) -> list[str]:
    values = pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)
    return [_bytes(value).decode("utf-8") for value in values]


def read_text(request: Any, name: str) -> str:
    return (read_bytes(request, name) or b"").decode("utf-8")


def read_ints(request: Any, name: str) -> Any:
    """An INT32 tensor as a numpy array of its shape."""
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def text_tensor(name: str, *texts: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode("utf-8") for text in texts], dtype=np.object_))


def int_tensor(name: str, values: Any, shape: tuple[int, ...] = (-1,)) -> Any:
    return pb_utils.Tensor(name, np.asarray(values, dtype=np.int32).reshape(shape))


def error_response(error: Exception) -> Any:
    """One paragraph for the user's mistakes; for ours a short text, and the traceback in the log."""
    if isinstance(error, OverloadError | EngineError):  # EngineError: the engine is stopped, another replica's is not
        return error_with_code("UNAVAILABLE", str(error))
    if isinstance(error, TandemError):
        return error_with_code("INVALID_ARG", str(error))
    log_exception(error)
    return error_with_code("INTERNAL", f"{type(error).__name__}; the server's log has the details")


def error_with_code(code: str, text: str) -> Any:
    """`code` is a name of pb_utils.TritonError. The text says it too: HTTP answers every error with status 400, and a gRPC stream
    carries no status unless its client sends the header triton_grpc_error."""
    shown = text if code == "INVALID_ARG" else f"{code}: {text}"
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(shown, getattr(pb_utils.TritonError, code)))


def log_exception(error: Exception) -> None:
    pb_utils.Logger.log_error("".join(traceback.format_exception(error)))
