"""Tensors of a Hugging Face folder: one safetensors file or several with an index. Opened lazily, read when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from builder.errors import WeightsError
from builder.weights.hf_config import read_json
from builder.weights.source import refuse_pointer

SUPPORTED_DTYPES = ("F32", "F16", "BF16")
_AGAIN = "Copy the file again"


class SafetensorsStore:
    """Tensors by Hugging Face name; shapes and types come from the headers alone."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[Path, Any] = {}
        self._place: dict[str, Path] = {}
        for path in _shards(folder):
            handle = _open(path)
            self._files[path] = handle
            for name in handle.keys():  # noqa: SIM118 - a safe_open handle is no mapping
                self._place[name] = path
        self.shapes: dict[str, tuple[int, ...]] = {name: self._header(name) for name in self._place}

    def where(self, name: str) -> str:
        return str(self._place[name])

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as bfloat16 or float32 (float16 is widened, which is exact)."""
        tensor = self._read(name)
        return tensor.float() if tensor.dtype == torch.float16 else tensor

    def raw(self, name: str) -> Iterator[bytes | memoryview]:
        """What identifies the tensor: its type, then its bytes as they are in the file."""
        tensor = self._read(name)
        yield str(tensor.dtype).encode()
        yield memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type] # NumPy 1 has no Buffer type

    def _read(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._files[self._place[name]].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"the tensor {name} cannot be read ({error})", where=self.where(name), mend=_AGAIN) from error
        return tensor

    def _header(self, name: str) -> tuple[int, ...]:
        view = self._files[self._place[name]].get_slice(name)
        if view.get_dtype() not in SUPPORTED_DTYPES:
            raise WeightsError(
                f"the tensor {name} has type {view.get_dtype()}, which is not supported",
                where=self.where(name),
                mend=f"Supported types are {', '.join(SUPPORTED_DTYPES)}; a quantised model can be read from a GGUF file",
            )
        return tuple(view.get_shape())


def _shards(folder: Path) -> list[Path]:
    """The safetensors files of the folder, all of them present."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not index.exists():
        if single.exists():
            return [single]
        binary = sorted(folder.glob("*.bin"))
        if binary:
            raise WeightsError(
                f"the folder holds {binary[0].name} but no safetensors; pickled weights are not read",
                where=str(folder),
                mend="Convert it once with transformers: load the model and call save_pretrained",
            )
        raise WeightsError("the folder holds no model.safetensors", where=str(folder), mend="Copy the whole Hugging Face folder")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError("the index has no weight_map", where=str(index), mend=_AGAIN)
    paths = [folder / name for name in sorted({str(name) for name in weight_map.values()})]
    for path in paths:
        if path.parent != folder:
            raise WeightsError(f"the index names {path}, outside its folder", where=str(index), mend=_AGAIN)
        if not path.exists():
            raise WeightsError(f"the shard {path.name} is missing", where=str(folder), mend="Copy all shards that the index names")
    return paths


def _open(path: Path) -> Any:
    refuse_pointer(path)
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path.name} is truncated or corrupt ({error})", where=str(path), mend=_AGAIN) from error
