"""The tokenizer inside a version folder: tokenizer.json and what else a request needs, in two files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import RepositoryError
from builder.text import Tokenizer

if TYPE_CHECKING:  # weights import torch, which the tokenize and detokenize processes do not need
    from builder.weights import TokenizerFiles

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"


def tokenizer_texts(files: TokenizerFiles) -> dict[str, str]:
    """Text by file name, as `Release.tokenizer` wants it."""
    config = {
        "chat_template": files.chat_template,
        "bos_token": files.bos_token,
        "eos_token": files.eos_token,
        "bos_token_id": files.bos_token_id,
        "eos_token_ids": list(files.eos_token_ids),
    }
    return {TOKENIZER_FILE: files.tokenizer_json, CONFIG_FILE: json.dumps(config, indent=2, ensure_ascii=False) + "\n"}


def load_tokenizer(folder: Path) -> Tokenizer:
    """RepositoryError when a file is missing or no JSON."""
    config = _read_config(folder)
    path = folder / TOKENIZER_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RepositoryError(f"cannot be read ({error.strerror})", where=str(path), mend="Build the pipeline again") from error
    return Tokenizer(text, config["chat_template"], config["bos_token"], config["eos_token"])


def eos_token_ids(folder: Path) -> frozenset[int]:
    """Tokens that end an answer, from the tokenizer folder of a version."""
    return frozenset(_read_config(folder)["eos_token_ids"])


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RepositoryError(f"cannot be read ({error})", where=str(path), mend="Build the pipeline again") from error
    return config
