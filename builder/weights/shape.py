"""The shape of a model whose weights are not on this machine: one of known_models.json, or a config.json."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from builder.errors import TokenizerError, WeightsError
from builder.weights.config import ModelConfig
from builder.weights.hf_config import config_from_hf, read_json
from builder.weights.tokenizer_files import open_tokenizer


@dataclass(frozen=True)
class Shape:
    """`tokenizer` is a fingerprint, the name of a family's tokenizer for known models, or None where a config.json stands alone."""

    config: ModelConfig
    tokenizer: str | None


def read_shape(name: str, base: Path) -> Shape:
    """A known model's shape, or that of a config.json (relative paths start at `base`) and the tokenizer beside it.

    Raises WeightsError for an unknown name or a configuration that cannot be computed.
    """
    known = known_models()
    if name in known:
        entry = known[name]
        return Shape(config_from_hf(entry["config"], name), f"the tokenizer of {entry['tokenizer']}")
    path = base / Path(name).expanduser()
    if path.suffix == ".json" and path.is_file():
        return Shape(config_from_hf(read_json(path), str(path)), _tokenizer_beside(path))
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    mend = f"Did you mean {near[0]}?" if near else f"Name a config.json, or one of {', '.join(known)}"
    raise WeightsError(f"{name} is no known model and no config.json", where=name, mend=mend)


@cache
def known_models() -> dict[str, dict[str, Any]]:
    """Name -> tokenizer family and the sizes of its config.json, as the models' publishers give them."""
    text = resources.files("builder.weights").joinpath("known_models.json").read_text(encoding="utf-8")
    models: dict[str, dict[str, Any]] = json.loads(text)
    return models


def _tokenizer_beside(path: Path) -> str | None:
    try:
        return open_tokenizer(str(path.parent.resolve()), path.parent).fingerprint
    except (TokenizerError, WeightsError):
        return None
