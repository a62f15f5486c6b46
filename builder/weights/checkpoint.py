"""A model's weights under Hugging Face names, whatever file they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch

from builder.errors import WeightsError
from builder.weights.config import ModelConfig
from builder.weights.gguf_config import read_gguf_config
from builder.weights.gguf_file import open_gguf
from builder.weights.gguf_store import GgufStore
from builder.weights.hf_config import read_hf_config
from builder.weights.layout import check_layout, expected_tensors
from builder.weights.safetensors_store import SafetensorsStore
from builder.weights.source import resolve


class TensorStore(Protocol):
    """Tensors of one format, by Hugging Face name."""

    shapes: dict[str, tuple[int, ...]]

    def where(self, name: str) -> str: ...

    def tensor(self, name: str) -> torch.Tensor: ...

    def raw(self, name: str) -> Iterator[bytes | memoryview]: ...


class Checkpoint:
    """Weights that fit their configuration (open_checkpoint checks it). Nothing but headers is read until a tensor is asked for."""

    def __init__(self, config: ModelConfig, source: str, store: TensorStore) -> None:
        self.config = config
        self.source = source
        self._store = store
        self._names = list(expected_tensors(config))

    def names(self) -> list[str]:
        """Names of the tensors in the order of the forward pass; `lm_head.weight` is absent when the head is tied."""
        return list(self._names)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, bfloat16 or float32, matrices as [out, in]. Raises WeightsError when it cannot be read."""
        if name not in self._names:
            raise WeightsError(f"the model has no tensor {name}", where=self.source, mend="Ask names() which there are")
        return self._store.tensor(name)

    def tensors(self, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
        """All tensors in memory, converted to `dtype` unless it is None."""
        return {name: self.tensor(name) if dtype is None else self.tensor(name).to(dtype) for name in self._names}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the configuration and each tensor's name, type and bytes as stored, sorted by name. Reads every byte once."""
        digest = hashlib.sha256(json.dumps(self.config.to_json(), sort_keys=True).encode())
        for name in sorted(self._names):
            digest.update(name.encode())
            for part in self._store.raw(name):
                digest.update(part)
        return digest.hexdigest()


def open_checkpoint(ref: str, base: Path) -> Checkpoint:
    """Open `package:DIST/FILE.gguf`, a `.gguf` path or a Hugging Face folder; relative paths start at `base`.

    Raises WeightsError when the weights are missing, truncated, inconsistent, or of a kind that is not supported.
    """
    source = resolve(ref, base)
    store: TensorStore
    if source.is_gguf:
        file = open_gguf(source.path)
        config = read_gguf_config(file)
        store = GgufStore(file, config)
    else:
        config = read_hf_config(source.path)
        store = SafetensorsStore(source.path)
    check_layout(config, store.shapes, str(source.path))
    return Checkpoint(config, ref, store)
