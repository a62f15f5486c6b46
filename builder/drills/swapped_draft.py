"""A draft that can be swapped for a bad one while it serves. Only the model.py of a drill's own repository loads it."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from builder.decoding.stopping import StopRule
from builder.errors import EngineError
from builder.repository.engine import DRAFT, open_parts, open_runner
from builder.repository.models.folder import read_spec
from builder.runtime.engine import Engine
from builder.runtime.observer import Observer
from builder.runtime.runner import Rows
from builder.runtime.runners.loaded import LoadedRunner

BAD_DRAFT = "bad_draft"  # folder beside the engines
SWAP_FILE = "swap"  # beside the version's folder: while it is there, the bad draft drafts
LOOK_EVERY = 0.05  # seconds between two looks at the file
MODEL = """\
from builder.drills import swapped_draft
from builder.repository.models import decode


class TritonPythonModel(decode.TritonPythonModel):
    load = staticmethod(swapped_draft.load)
"""


class SwappedDraft:
    """Both drafts write to one KV cache, as a draft does that was replaced in place."""

    def __init__(self, good: LoadedRunner, bad: LoadedRunner, swap_file: Path) -> None:
        self.config = good.config
        self._good = good
        self._bad = bad
        self._file = swap_file
        self._looked = 0.0  # monotonic clock
        self._swapped = False

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        self._good.allocate_cache(num_blocks, block_size)

    def cache_bytes_per_block(self, block_size: int) -> int:
        return self._good.cache_bytes_per_block(block_size)

    def embed(self, rows: Rows) -> torch.Tensor:
        return self._now.embed(rows)

    def layers(self, hidden: torch.Tensor, rows: Rows, start: int, stop: int) -> torch.Tensor:
        return self._now.layers(hidden, rows, start, stop)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._now.head(hidden)

    def greedy(self, hidden: torch.Tensor) -> list[int]:
        return self._now.greedy(hidden)

    def continue_greedily(self, rows: Rows, lengths: torch.Tensor, stop: StopRule | None) -> tuple[torch.Tensor, torch.Tensor]:
        return self._now.continue_greedily(rows, lengths, stop)

    @property
    def _now(self) -> LoadedRunner:
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._looked, self._swapped = time.monotonic(), self._file.exists()
        return self._bad if self._swapped else self._good


def load(folder: Path, observer: Observer) -> Engine:
    """Takes the place of repository.models.loader.load."""
    spec = read_spec(folder)
    parts = open_parts(folder, spec)
    good = parts.draft
    if good is None or good.embedding is None:
        raise EngineError("this version has no draft to swap", where=str(folder), mend="Give the pipeline a draft and build it again")
    bad = open_runner(folder, BAD_DRAFT, spec, spec.draft_device)
    bad.share_embedding(good.embedding)
    bad.share_cache(good)
    draft = SwappedDraft(good, bad, folder.parent / SWAP_FILE)
    return replace(parts, draft=cast(LoadedRunner, draft)).engine(observer=observer, version=folder.name)


def write_bad_draft(version_folder: Path, folder: Path) -> None:
    """The draft of a version with random bytes for its packed weights: scales, norms and form are the old ones."""
    from builder.compile.torch_aot.folder import read_info, write_folder
    from builder.compile.torch_aot.unpacking import read_tensors

    source = version_folder / DRAFT
    generator = torch.Generator().manual_seed(0)
    tensors = read_tensors(source)
    for name, tensor in tensors.items():
        if name.endswith(".weight") and tensor.dtype == torch.uint8:
            tensors[name] = torch.randint(0, 256, tensor.shape, generator=generator, dtype=torch.uint8)
    shutil.rmtree(folder, ignore_errors=True)
    write_folder(folder, read_info(source), tensors)
