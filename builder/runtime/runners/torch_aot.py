"""The runner of a compiled torch_aot engine: packed weights on huge pages, passes in the C++ kernel library."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from builder.compile.torch_aot.folder import EngineInfo, read_info, read_layout
from builder.decoding.stopping import StopRule
from builder.errors import EngineError
from builder.files import sha256
from builder.runtime.exits import ExitPoint
from builder.runtime.runner import Rows
from builder.runtime.runners.loaded import LoadedRunner, cache_bytes_per_block
from builder.runtime.runners.rotation import rotation
from builder.runtime.runners.vocabulary import spread
from builder.weights.config import ModelConfig

_KEYS_PER_LINE = 16  # positions of a key line (kernels/model.h, Cache)
EMBEDDING = "embed"
VOCABULARY = "vocabulary"
_LINE = 64  # bytes of a cache line
_loaded_kernels: set[str] = set()  # SHA-256 of the libraries in this process


class TorchAotRunner:
    """Implements ExitRunner (builder.runtime.runner) and LoadedRunner over the torch class `tandem.Decoder` (kernels/binding.cpp)."""

    def __init__(self, info: EngineInfo, tensors: dict[str, torch.Tensor], decoder: Any, kv_dtype: torch.dtype) -> None:
        self.info = info
        self.config: ModelConfig = info.model
        self.kv_dtype = kv_dtype
        self._tensors = tensors
        self._decoder = decoder
        self._cache: tuple[torch.Tensor, torch.Tensor] | None = None
        self._embedding: torch.Tensor | None = None
        self._vocabulary = tensors[VOCABULARY].long() if VOCABULARY in tensors else None
        if EMBEDDING in tensors:
            self.share_embedding(tensors[EMBEDDING])

    @property
    def instruction_set(self) -> str:
        return str(self._decoder.instruction_set())

    def cache_bytes_per_block(self, block_size: int) -> int:
        return cache_bytes_per_block(self.config, self.kv_dtype, block_size)

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        if block_size % _KEYS_PER_LINE:
            raise EngineError(f"block_size is {block_size}", where="engine.kv_cache.block_size", mend=f"Use a multiple of {_KEYS_PER_LINE}")
        config = self.config
        shape = (config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_dim)
        key, value = _placed({"key": (shape, self.kv_dtype), "value": (shape, self.kv_dtype)}).values()
        self._set_cache(key, value)

    def share_cache(self, owner: LoadedRunner) -> None:
        """Use the first layers of another runner's cache: this model must be made from the same layers."""
        if (
            not isinstance(owner, TorchAotRunner)
            or owner._cache is None
            or owner.config.num_kv_heads != self.config.num_kv_heads
            or owner.config.num_layers < self.config.num_layers
        ):
            raise EngineError("the draft cannot share the target's KV cache", mend="Build the draft from the target's own weights")
        self._set_cache(*owner._cache)

    @property
    def embedding(self) -> torch.Tensor | None:
        return self._embedding

    def share_embedding(self, embedding: torch.Tensor) -> None:
        """Look tokens up in another runner's embedding: an engine built without its own."""
        self._embedding = embedding.cpu()
        self._decoder.set_embedding(self._embedding)

    def _set_cache(self, key: torch.Tensor, value: torch.Tensor) -> None:
        self._cache = (key, value)
        self._decoder.set_cache(key, value)

    def embed(self, rows: Rows) -> torch.Tensor:
        if self._embedding is None:
            raise EngineError("the draft has no embedding of its own", mend="Call share_embedding first")
        return self._embedding[rows.token_ids].float()

    def layers(self, hidden: torch.Tensor, rows: Rows, start: int, stop: int) -> torch.Tensor:
        self._decoder.layers(hidden, rows.positions, rows.sequence, rows.block_tables, start, stop)
        return hidden

    def continue_greedily(self, rows: Rows, lengths: torch.Tensor, stop: StopRule | None) -> tuple[torch.Tensor, torch.Tensor]:
        chances, least = torch.tensor(stop.chances if stop else ()), stop.least if stop else 0.0
        batch = rows.token_ids, rows.positions, rows.sequence, rows.block_tables
        drafted, confidences = self._decoder.continue_greedily(*batch, lengths, chances, least)
        return drafted, confidences

    def draft_to_exit(self, rows: Rows, lengths: torch.Tensor, point: ExitPoint) -> tuple[torch.Tensor, torch.Tensor]:
        batch = rows.token_ids, rows.positions, rows.sequence, rows.block_tables
        drafted, states = self._decoder.draft_to_exit(*batch, lengths, _compiled(point), point.layer, point.threshold)
        return drafted, states

    def to_exit(
        self, hidden: torch.Tensor, rows: Rows, start: int, stop: int, asked: Sequence[int], points: Sequence[ExitPoint]
    ) -> tuple[int, list[int], list[float]]:
        heads, stops, thresholds = [_compiled(p) for p in points], [p.layer for p in points], [float(p.threshold) for p in points]
        wanted = torch.tensor(asked, dtype=torch.int32)
        batch = rows.positions, rows.sequence, rows.block_tables
        place, tokens, confidence = self._decoder.to_exit(hidden, *batch, start, stop, wanted, stops, heads, thresholds)
        return place, tokens.tolist(), confidence.tolist()

    def greedy(self, hidden: torch.Tensor) -> list[int]:
        best: torch.Tensor = self._decoder.greedy(hidden, self.info.scored)
        tokens: list[int] = (best if self._vocabulary is None else self._vocabulary[best.long()]).tolist()
        return tokens

    def judge(self, hidden: torch.Tensor, scored: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Place of the largest of the first `scored` outputs of each row, int32 [rows], and its probability, float32 [rows]."""
        places, probabilities = self._decoder.judge(hidden, scored)
        return places, probabilities

    def outputs(self, hidden: torch.Tensor) -> torch.Tensor:
        """The head's outputs as they are packed, float32 [rows, outputs]: of a cut vocabulary in the order of its tokens, then padding."""
        outputs: torch.Tensor = self._decoder.head(hidden)
        return outputs

    def tensor(self, name: str) -> torch.Tensor | None:
        """One of the engine's tensors, as stored."""
        return self._tensors.get(name)

    def products(self, rows: int) -> None:
        """Every matrix product of a pass over dummy rows and nothing else: the limit that `bench` compares a step with."""
        self._decoder.products(rows)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.outputs(hidden)[:, : self.info.scored]  # the packed head is padded to whole work units
        if self._vocabulary is None:
            return logits
        return spread(logits, self._vocabulary, self.config.vocab_size)


def _compiled(point: ExitPoint) -> Any:
    """The kernels' side of an exit head."""
    runner = getattr(point.head, "runner", None)
    if not isinstance(runner, TorchAotRunner):
        raise EngineError("the exit head is not compiled for this engine", where="early_exit", mend="Run `builder calibrate` again")
    return runner._decoder


def load_runner(
    folder: Path,
    library: Path,
    *,
    max_seq_len: int,
    threads: int | None = None,
    cpus: Sequence[int] = (),
    instruction_set: str = "auto",
) -> TorchAotRunner:
    """Load the engine in `folder`; `library` is the kernel library it was built with. Nothing is compiled here.

    Thread i is tied to cpus[i] while it computes; none: the system places threads.

    The KV cache is bfloat16, and float32 with a float32 engine.

    Raises EngineError when the folder is broken, the library cannot be loaded, or the processor lacks the instruction set.
    """
    info = read_info(folder)
    try:
        load_kernels(library)
        tensors = _read_weights(folder / "weights.safetensors")
        cosine, sine = rotation(info.model, max_seq_len)
        decoder = torch.classes.tandem.Decoder(
            _sizes(info.model),
            info.model.rms_norm_eps,
            {**tensors, "rope.cosine": cosine, "rope.sine": sine},
            instruction_set,
            threads or available_cores(),
            list(cpus),
        )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise EngineError(
            f"the engine cannot be loaded ({reason})", where=str(folder), mend="Run `builder doctor`, then build again on this machine"
        ) from error
    return TorchAotRunner(info, tensors, decoder, torch.float32 if info.weights == "float32" else torch.bfloat16)


def load_kernels(library: Path) -> None:
    """Once for each content: every version has a copy of the library, and torch ends the process where its classes are registered twice.

    OSError when it cannot be read or loaded.
    """
    digest = sha256(library)
    if digest not in _loaded_kernels:
        torch.ops.load_library(str(library))
        _loaded_kernels.add(digest)


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    """What every pass reads is read from the file onto huge pages (a mapping would be counted, and kept, beside them); the embedding
    stays mapped, since a pass looks up a row or two of it."""
    layout = read_layout(path)
    placed = _placed({name: (stored.shape, stored.dtype) for name, stored in layout.items() if name != EMBEDDING})
    with path.open("rb", buffering=0) as file:
        for name, tensor in placed.items():
            file.seek(layout[name].offset)
            file.readinto(tensor.view(torch.uint8).reshape(-1).numpy().data)
    if EMBEDDING in layout:
        with safe_open(path, framework="pt") as mapped:
            placed[EMBEDDING] = mapped.get_tensor(EMBEDDING)
    return placed


def _placed(wanted: Mapping[str, tuple[Sequence[int], torch.dtype]]) -> dict[str, torch.Tensor]:
    """Zeroed tensors of the given shapes and types, one after the other on huge pages, each on a cache line of its own."""
    sizes = {name: -(-math.prod(shape) * dtype.itemsize // _LINE) * _LINE for name, (shape, dtype) in wanted.items()}
    room = torch.ops.tandem.huge_pages(sum(sizes.values()))
    parts = room.split(list(sizes.values()))
    return {
        name: part[: math.prod(shape) * dtype.itemsize].view(dtype).view(*shape)
        for part, (name, (shape, dtype)) in zip(parts, wanted.items(), strict=True)
    }


def available_cores() -> int:
    """Cores this process may run on (affinity respected)."""
    return len(os.sched_getaffinity(0))


def _sizes(config: ModelConfig) -> dict[str, int]:
    names = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
    return {name: getattr(config, name) for name in names}
