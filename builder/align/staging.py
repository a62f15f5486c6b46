"""A version folder for measuring and writing, before there is a version: links to engines in the cache."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.repository.engine import DRAFT, KERNELS, TARGET, open_engine
from builder.repository.layout import TOKENIZER_FOLDER
from builder.repository.tokenizer import load_tokenizer
from builder.runtime.engine import Engine
from builder.spec.early_exit import EarlyExit
from builder.spec.pipeline import PipelineSpec
from builder.spec.speculation import Control
from builder.text import Tokenizer

_BATCH = 16  # sequences written or measured at once
_CACHE = 256 << 20  # bytes of keys and values: 16 sequences of 512 tokens even for a model of a billion weights


@dataclass(frozen=True)
class Parts:
    """Engine folders in the cache, and tokenizer files by name (repository.tokenizer.tokenizer_texts)."""

    target: Path
    draft: Path  # not aligned
    kernels: Path
    tokenizer: Mapping[str, str] = field(repr=False)


@contextmanager
def staged(parts: Parts, draft: Path | None) -> Iterator[Path]:
    """A folder like `<p>_decode/N` with `draft` in it, or none."""
    with tempfile.TemporaryDirectory(prefix="tandem-align-") as name:
        folder = Path(name)
        for role, source in ((TARGET, parts.target), (KERNELS, parts.kernels), (DRAFT, draft)):
            if source is not None:
                (folder / role).symlink_to(source.resolve())
        (folder / TOKENIZER_FOLDER).mkdir()
        for file, text in parts.tokenizer.items():
            (folder / TOKENIZER_FOLDER / file).write_text(text, encoding="utf-8")
        yield folder


def staged_engine(folder: Path, spec: PipelineSpec, draft_tokens: int) -> Engine:
    """The engine of a staged folder."""
    return open_engine(folder, staged_spec(spec, draft_tokens))


def staged_spec(spec: PipelineSpec, draft_tokens: int, batch: int = _BATCH) -> PipelineSpec:
    """Plain when draft_tokens is 0, else with the draft model alone as the proposer; a small cache for one thing after another, `batch` of
    them at once."""
    speculation: dict[str, Any] = {"proposer": "draft_model", "max_draft_tokens": draft_tokens} if draft_tokens else {"proposer": "none"}
    speculation["control"] = Control(adaptive=False)
    memory = min(spec.engine.kv_cache.memory, _CACHE)
    kv_cache = spec.engine.kv_cache.model_copy(update={"memory": memory, "prefix_caching": False})
    limits = {"max_batch_size": min(batch, spec.engine.max_num_tokens), "kv_cache": kv_cache}
    sections = {
        "speculation": spec.speculation.model_copy(update=speculation),
        "engine": spec.engine.model_copy(update=limits),
        "early_exit": EarlyExit(),
    }
    return spec.model_copy(update=sections)


def staged_tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder / TOKENIZER_FOLDER)
