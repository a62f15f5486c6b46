"""The bytes that each token stands for.

Streaming needs bytes, not strings: one character may be split over several tokens, and the tokenizers package turns a part of a
character into replacement marks. Two families of decoders are understood: byte-level (GPT-2, Llama 3, Qwen, SmolLM) and
sentencepiece-like (Llama 2, Mistral).
"""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers

from builder.errors import TokenizerError

_SPACE = "\u2581"  # sentencepiece's visible space
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: printable bytes are themselves, the others take the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


class Pieces:
    """Token id to bytes. `strips_space` says that the first space of a text is an artefact of encoding and is dropped."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        description = json.loads(tokenizer.to_str())
        steps = _flatten(description.get("decoder"))
        kinds = [step["type"] for step in steps]
        self._tokenizer = tokenizer
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        if not (self._byte_level or "Metaspace" in kinds or any(_replaces_space(step) for step in steps)):
            raise TokenizerError(
                f"the tokenizer's decoder ({' + '.join(kinds) or 'none'}) is not supported",
                where="tokenizer.json",
                mend="Supported are byte-level and sentencepiece-like tokenizers",
            )
        self.strips_space = any(_strips_space(step) for step in steps)
        self._added = {token["id"]: token for token in description.get("added_tokens", [])}
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """The token's bytes; empty for special tokens and for ids outside the vocabulary (padding rows of a model)."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._bytes(token_id)
        return known

    def _bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None and added["special"]:
            return b""
        token = self._tokenizer.id_to_token(token_id) if 0 <= token_id < 1 << 31 else None
        if token is None:
            return b""
        if self._byte_level:
            mapped = [_ALPHABET.get(character) for character in token]
            return token.encode() if None in mapped else bytes(byte for byte in mapped if byte is not None)
        byte = _BYTE_TOKEN.fullmatch(token) if self._byte_fallback else None
        return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _flatten(inner)]
    return [decoder]


def _replaces_space(step: dict[str, Any]) -> bool:
    return step["type"] == "Replace" and step.get("pattern") == {"String": _SPACE} and step.get("content") == " "


def _strips_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0
