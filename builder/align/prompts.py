"""What the target is asked to write about: shipped prompts, and the user's own prompts and texts."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from builder.errors import RequestError, SpecError
from builder.text import Tokenizer

HELD_OUT = 4  # one prompt in four, by hash, is never trained on
TEXT_TOKENS = 256  # a user's text is cut into pieces of this size
_KINDS = ("prompt", "messages", "text")
_EXAMPLE = 'Write one object a line: {"prompt": ...}, {"messages": [...]} or {"text": ...}'


@dataclass(frozen=True)
class Prompt:
    """`kind` "prompt" is continued as it is, "messages" is a chat in JSON, "text" is trained on itself and asks for nothing."""

    category: str  # facts, code, rewrite, chat, lists, mail; "yours" for the user's
    kind: str
    content: str

    @property
    def number(self) -> int:
        """A hash: it orders prompts so that categories mix, and adding prompts moves no other prompt to another side."""
        return int(hashlib.sha256(self.content.encode()).hexdigest(), 16)

    @property
    def held_out(self) -> bool:
        """Never trained on. A text has no answer to measure, so all of it is learned."""
        return self.kind != "text" and self.number % HELD_OUT == 0


def shipped_prompts() -> list[Prompt]:
    """User messages of own wording in six categories."""
    lines = (files("builder.align") / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [Prompt(entry["class"], "messages", _user(entry["prompt"])) for entry in map(json.loads, lines)]


def read_prompts(path: Path) -> list[Prompt]:
    """The user's JSONL, one object a line. SpecError with file:line for the first bad line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: JSON strings may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not valid UTF-8"
        raise SpecError(f"the prompts cannot be read ({reason})", where=str(path), mend=_EXAMPLE) from error
    found = [_read_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise SpecError("there are no prompts", where=str(path), mend=_EXAMPLE)
    return found


def prompts_fingerprint(prompts: Iterable[Prompt]) -> str:
    """SHA-256 over category, kind and content, in order."""
    return hashlib.sha256(json.dumps([[p.category, p.kind, p.content] for p in prompts]).encode()).hexdigest()


def prompt_tokens(prompt: Prompt, tokenizer: Tokenizer) -> list[int]:
    """Ids the target continues; without a chat template a chat becomes its messages' text, line by line."""
    if prompt.kind != "messages":
        return tokenizer.encode(prompt.content, add_special_tokens=True)
    messages = json.loads(prompt.content)
    if tokenizer.chats:
        return tokenizer.encode(tokenizer.chat_prompt(messages), add_special_tokens=False)
    return tokenizer.encode("\n".join(message["content"] for message in messages), add_special_tokens=True)


def check_prompts(prompts: Sequence[Prompt], tokenizer: Tokenizer, path: Path) -> None:
    """Tokenize once before anything is trained. SpecError names the first prompt the model's template or tokenizer refuses."""
    for prompt in prompts:
        try:
            prompt_tokens(prompt, tokenizer)
        except RequestError as error:
            raise SpecError(f"the model refuses a prompt ({error.what}): {prompt.content[:60]}", where=str(path)) from error


def _read_line(line: str, where: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"not JSON ({error})", where=where, mend=_EXAMPLE) from None
    if not isinstance(entry, dict) or len(entry) != 1:
        raise SpecError("a line is one object with one key", where=where, mend=_EXAMPLE)
    ((kind, content),) = entry.items()
    if kind not in _KINDS:
        near = difflib.get_close_matches(kind, _KINDS, 1)
        raise SpecError(f"unknown key {kind!r}", where=where, mend=f"Did you mean {near[0]}?" if near else _EXAMPLE)
    if kind == "messages":
        return Prompt("yours", kind, json.dumps(_messages(content, where), ensure_ascii=False))
    if not isinstance(content, str) or not content.strip():
        raise SpecError(f"{kind} must be a text that is not empty", where=where, mend=_EXAMPLE)
    return Prompt("yours", kind, content)


def _messages(content: Any, where: str) -> list[dict[str, str]]:
    keys = ("role", "content")
    good = isinstance(content, list) and all(
        isinstance(message, dict) and all(isinstance(message.get(key), str) for key in keys) for message in content
    )
    if not good or not content:
        raise SpecError("messages must be a list of objects with the texts `role` and `content`", where=where, mend=_EXAMPLE)
    return [{key: message[key] for key in keys} for message in content]


def _user(text: str) -> str:
    return json.dumps([{"role": "user", "content": text}], ensure_ascii=False)
