"""Where an interrupted alignment stands, beside the engine cache: a second run with the same inputs goes on from there."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from builder.align.corpus import Sample
from builder.files import sync_folder

EVERY = 30.0  # seconds between two writes


@dataclass(frozen=True)
class Standing:
    """`seconds` spent so far, over all runs; training began after `began` of them; `training` is Training.state()."""

    samples: Sequence[Sample]
    seconds: float
    began: float
    training: dict[str, Tensor]


def write_standing(path: Path, standing: Standing) -> None:
    """Complete or not at all, also after a power cut."""
    tensors = {
        **standing.training,
        "corpus.ids": torch.tensor([token for sample in standing.samples for token in sample.ids], dtype=torch.int32),
        "corpus.lengths": torch.tensor([[len(sample.ids), sample.start] for sample in standing.samples], dtype=torch.int32).view(-1, 2),
    }
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(tensors, str(staged), metadata={"standing": json.dumps([standing.seconds, standing.began])})
        with staged.open("rb") as file:
            os.fsync(file.fileno())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_standing(path: Path) -> Standing | None:
    """None when there is none, or it cannot be read: alignment then starts anew."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
            seconds, began = map(float, json.loads(file.metadata()["standing"]))
        lengths = tensors.pop("corpus.lengths").tolist()
        parts = tensors.pop("corpus.ids").split([length for length, _ in lengths])
        samples = [Sample(tuple(ids.tolist()), start) for ids, (_, start) in zip(parts, lengths, strict=True)]
        return Standing(samples, seconds, began, tensors)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError):
        return None
