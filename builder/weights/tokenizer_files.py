"""What a tokenizer is made of, from a Hugging Face folder or from a GGUF file's metadata."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from builder.errors import TokenizerError
from builder.weights.gguf_config import gguf_end_token_ids
from builder.weights.gguf_file import GgufFile, open_gguf
from builder.weights.gguf_tokenizer import build_gguf_tokenizer, gguf_token, prepend_bos
from builder.weights.hf_config import end_token_ids, read_json
from builder.weights.source import resolve


@dataclass(frozen=True)
class TokenizerFiles:
    """Everything that `builder.text.Tokenizer` needs. `bos_token` and `eos_token` are for chat templates, the ids for decoding."""

    tokenizer_json: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all fields, the tokenizer's JSON in canonical form: the same tokenizer gives the same value however it was saved."""
        fields = asdict(self) | {"tokenizer_json": json.loads(self.tokenizer_json)}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def open_tokenizer(ref: str, base: Path) -> TokenizerFiles:
    """Read the tokenizer that comes with the weights `ref` (see open_checkpoint).

    Raises TokenizerError when there is none or it cannot be used, WeightsError when the files cannot be read.
    """
    source = resolve(ref, base)
    return _from_gguf(open_gguf(source.path)) if source.is_gguf else _from_folder(source.path)


def _from_gguf(file: GgufFile) -> TokenizerFiles:
    return TokenizerFiles(
        tokenizer_json=build_gguf_tokenizer(file).to_str(),
        chat_template=file.get("tokenizer.chat_template"),
        bos_token=gguf_token(file, "bos"),
        eos_token=gguf_token(file, "eos"),
        bos_token_id=file.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=gguf_end_token_ids(file),
    )


def _from_folder(folder: Path) -> TokenizerFiles:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise TokenizerError(
            "the folder holds no tokenizer.json",
            where=str(folder),
            mend="Save it once with transformers' AutoTokenizer (use_fast=True) and save_pretrained",
        )
    settings = read_json(folder / "tokenizer_config.json", optional=True)
    config = read_json(folder / "config.json", optional=True)
    generation = read_json(folder / "generation_config.json", optional=True)
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the tokenizers package raises bare Exception
        raise TokenizerError(f"tokenizer.json cannot be read ({error})", where=str(path), mend="Copy the file again") from error
    bos_token, eos_token = _token(settings, "bos_token"), _token(settings, "eos_token")
    bos_id = tokenizer.token_to_id(bos_token) if bos_token else None
    eos_id = tokenizer.token_to_id(eos_token) if eos_token else None
    if settings.get("add_bos_token") is True and bos_token and bos_id is not None and tokenizer.encode("").ids[:1] != [bos_id]:
        prepend_bos(tokenizer, bos_token, bos_id)
    ends = [*end_token_ids(config, generation), *([eos_id] if eos_id is not None else [])]
    return TokenizerFiles(
        tokenizer_json=tokenizer.to_str(),
        chat_template=_chat_template(folder, settings),
        bos_token=bos_token,
        eos_token=eos_token,
        bos_token_id=bos_id,
        eos_token_ids=tuple(dict.fromkeys(ends)),
    )


def _token(settings: dict[str, Any], key: str) -> str | None:
    """A special token is written as a string or as an object with its text under `content`."""
    value = settings.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's: a string, or a list of named templates of which `default` counts."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path.name} cannot be read ({error})", where=str(path), mend="Copy the file again") from error
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None
