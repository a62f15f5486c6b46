"""A GGUF file: its metadata and tensor table, read whole; tensor data stays memory-mapped.

The format is that of ggml's docs/gguf.md, versions 2 and 3, little-endian. Constants and dequantisation come from the gguf package;
its GGUFReader is not used because it takes three seconds for a vocabulary of 49 000 and does not end on a corrupt array length.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from builder.errors import WeightsError
from builder.weights.source import refuse_pointer

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_T = GGUFValueType
_SCALARS: dict[GGUFValueType, str] = {  # little-endian, as struct and NumPy both write it
    _T.UINT8: "<B", _T.INT8: "<b", _T.UINT16: "<H", _T.INT16: "<h", _T.UINT32: "<I", _T.INT32: "<i",
    _T.UINT64: "<Q", _T.INT64: "<q", _T.FLOAT32: "<f", _T.FLOAT64: "<d", _T.BOOL: "<?",
}  # fmt: skip
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class GgufTensor:
    """`shape` is [out, in] as in torch (GGML writes the fastest dimension first); `data` is uint8 [rows, bytes per row]."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


class GgufFile:
    """Metadata by key and tensors by GGUF name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = memoryview(np.memmap(path, dtype=np.uint8, mode="r"))  # type: ignore[arg-type] # NumPy 1 has no Buffer type
        self._place = 0
        try:
            self._read_tables()
        except (ValueError, struct.error, KeyError) as error:
            raise WeightsError(
                f"{path.name} is truncated, corrupt or not a GGUF file ({error})", where=str(path), mend="Copy the file again"
            ) from error

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key: a number, bool, string or list."""
        return self._metadata.get(key, default)

    def require(self, key: str) -> Any:
        value = self._metadata.get(key)
        if value is None:
            raise WeightsError(f"the metadata key {key} is missing", where=str(self.path), mend="Convert the model to GGUF again")
        return value

    def _read_tables(self) -> None:
        if bytes(self._take(4)) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._scalar("<I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}, not 2 or 3 in little-endian order")
        tensor_count, key_count = self._scalar("<Q"), self._scalar("<Q")
        self._metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self._string()
            self._metadata[key] = self._value(_T(self._scalar("<I")))
        headers = [self._tensor_header() for _ in range(tensor_count)]
        alignment = self._metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ValueError(f"its alignment is {alignment!r}")
        start = math.ceil(self._place / alignment) * alignment
        self.tensors = {name: self._tensor(name, kind, shape, start + offset) for name, kind, shape, offset in headers}

    def _tensor_header(self) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
        name, dimensions = self._string(), self._scalar("<I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name} has {dimensions} dimensions")
        shape = tuple(self._scalar("<Q") for _ in range(dimensions))[::-1]
        return name, GGMLQuantizationType(self._scalar("<I")), shape, self._scalar("<Q")

    def _tensor(self, name: str, kind: GGMLQuantizationType, shape: tuple[int, ...], offset: int) -> GgufTensor:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] == 0 or shape[-1] % block:
            raise ValueError(f"the rows of {name} are not whole blocks of {kind.name}")
        row_bytes = shape[-1] // block * block_bytes
        self._place = offset
        data = np.frombuffer(self._take(math.prod(shape[:-1]) * row_bytes), dtype=np.uint8)
        return GgufTensor(name, kind, shape, data.reshape(*shape[:-1], row_bytes))

    def _value(self, kind: GGUFValueType) -> Any:
        if kind == _T.STRING:
            return self._string()
        if kind != _T.ARRAY:
            return self._scalar(_SCALARS[kind])
        item, count = _T(self._scalar("<I")), self._scalar("<Q")
        if item == _T.ARRAY:
            raise ValueError("it has an array of arrays")
        if item in _SCALARS:
            dtype = np.dtype(_SCALARS[item])
            return np.frombuffer(self._take(count * dtype.itemsize), dtype=dtype).tolist()
        return [self._value(item) for _ in range(count)]

    def _string(self) -> str:
        return str(self._take(self._scalar("<Q")), "utf-8")

    def _scalar(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, size: int) -> memoryview:
        """The next `size` bytes. Every read goes through here, so none passes the end of the file."""
        end = self._place + size
        if end > len(self._data):
            raise ValueError(f"{end} bytes are needed, it has {len(self._data)}")
        taken = self._data[self._place : end]
        self._place = end
        return taken


def open_gguf(path: Path) -> GgufFile:
    """Read the tables of `path`. Raises WeightsError when the file is a pointer, truncated or corrupt."""
    refuse_pointer(path)
    stat = path.stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=2)  # weights and tokenizer of one file are opened one after the other
def _read(path: Path, size: int, mtime_ns: int) -> GgufFile:  # noqa: ARG001 - size and time are part of the cache key
    return GgufFile(path)
