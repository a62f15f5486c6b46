"""Where `builder build` hands a pipeline over to a GPU host, and what it said comes next."""

from __future__ import annotations

import json
from pathlib import Path

from builder.errors import CheckError
from builder.repository.versions import versions
from builder.spec.pipeline import PipelineSpec

SUMMARY = "handover.json"


def handover_folder(repository: Path, pipeline: str) -> Path:
    return repository.parent / "build" / "trtllm" / pipeline


def require_served_here(repository: Path, spec: PipelineSpec) -> None:
    """CheckError, with the command that goes on, for a pipeline of the trtllm backends that the repository has no version of."""
    name, backend = spec.metadata.name, spec.engine.chosen_backend
    if backend == "torch_aot" or versions(repository, name):
        return
    folder = handover_folder(repository, name)
    try:
        mend = str(json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["next_step"])
    except (OSError, ValueError, KeyError):
        mend = "Run `builder build` first: it makes the checkpoints and says which command goes on, and where"
    raise CheckError(f"{name} is served by {backend} on its GPU host, not from this repository", where=str(folder), mend=mend)
