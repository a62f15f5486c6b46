"""The engine folder: engine.json and weights.safetensors, packed for the kernels."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from builder.errors import BuildError, EngineError
from builder.weights.config import ModelConfig

FORMAT = 1  # raise when the packed layout changes: older folders are then refused and rebuilt
LINE = 64  # bytes; the kernels read whole cache lines, so every tensor starts on one
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.uint8: "U8", torch.int32: "I32"}


@dataclass(frozen=True)
class EngineInfo:
    """What engine.json says. `weights` is "bfloat16", "float32" or "int4"; `errors` the relative quantisation error by layer."""

    role: str  # "target" | "draft"
    model: ModelConfig
    weights: str
    source: str
    fingerprint: str
    group_size: int | None = None
    symmetric: bool | None = None
    errors: dict[str, float] | None = None
    vocabulary: int | None = None  # tokens the head scores (tensor `vocabulary` has their ids); None: all

    @property
    def scored(self) -> int:
        """Outputs of the head, without padding."""
        return self.vocabulary or self.model.vocab_size

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "model": self.model.to_json()}


def write_folder(folder: Path, info: EngineInfo, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write the engine into `folder` (created). Raises BuildError when the disk is full or may not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_safetensors(folder / "weights.safetensors", tensors)
        (folder / "engine.json").write_text(json.dumps(info.to_json(), indent=2) + "\n")
    except OSError as error:
        raise BuildError(
            f"the engine cannot be written ({error.strerror})", where=str(folder), mend="Free disk space or choose another folder"
        ) from error


def read_info(folder: Path) -> EngineInfo:
    """Raises EngineError when engine.json is missing, broken, or of another format."""
    path = folder / "engine.json"
    try:
        data = json.loads(path.read_text())
        if data.pop("format") != FORMAT:
            raise EngineError("the engine has another format than this version reads", where=str(path), mend="Build the pipeline again")
        return EngineInfo(**{**data, "model": ModelConfig.from_json(data["model"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"the engine cannot be read ({error})", where=str(path), mend="Build the pipeline again") from error


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies in weights.safetensors: `offset` in bytes from the start of the file."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_layout(path: Path) -> dict[str, Stored]:
    """The tensors of a weights.safetensors by name. EngineError when the file is missing, truncated or of another form."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, path.stat().st_size)))
        types = {name: dtype for dtype, name in _DTYPES.items()}
        found = {
            name: Stored(tuple(entry["shape"]), types[entry["dtype"]], 8 + length + entry["data_offsets"][0])
            for name, entry in header.items()
            if not name.startswith("_pad.")
        }
        truncated = max((stored.offset + stored.bytes for stored in found.values()), default=0) > path.stat().st_size
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise EngineError(f"the weights cannot be read ({error})", where=str(path), mend="Build the pipeline again") from error
    if truncated:
        raise EngineError("the weights are truncated", where=str(path), mend="Build the pipeline again")
    return found


def _write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """The safetensors format, with the header padded by spaces so that the data, and so every tensor, starts on a cache line.

    The library's own writer aligns to 8 bytes only. Sizes are padded by unnamed filler tensors, since the format allows no gaps.
    """
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
        if gap := -offset % LINE:
            header[f"_pad.{name}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [offset, offset + gap]}
            offset += gap
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % LINE)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            data = tensor.contiguous().view(torch.uint8).reshape(-1).numpy().data
            file.write(data)
            file.write(b"\0" * (-len(data) % LINE))
        file.flush()
        os.fsync(file.fileno())
