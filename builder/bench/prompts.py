"""The prompts of `builder bench`: facts, code, and rewrites, whose answers repeat most of the prompt."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from builder.errors import SpecError
from builder.text import Tokenizer


@dataclass(frozen=True)
class Prompt:
    kind: str  # the class: "facts" | "code" | "rewrite"
    name: str
    text: str

    def rendered(self, tokenizer: Tokenizer) -> str:
        """The text in the model's chat template, if it has one."""
        return tokenizer.chat_prompt([{"role": "user", "content": self.text}]) if tokenizer.chats else self.text

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        return tokenizer.encode(self.rendered(tokenizer), add_special_tokens=not tokenizer.chats)


@cache
def shipped() -> tuple[Prompt, ...]:
    lines = files("builder.bench").joinpath("prompts.jsonl").read_text(encoding="utf-8").splitlines()
    entries = map(json.loads, lines)
    return tuple(Prompt(entry["class"], entry["name"], entry["text"]) for entry in entries)


def kinds() -> tuple[str, ...]:
    """The classes of the shipped prompts, in order."""
    return tuple(dict.fromkeys(prompt.kind for prompt in shipped()))


def select(wanted: Sequence[str], per_class: int | None = None) -> tuple[Prompt, ...]:
    """Shipped prompts of the classes in `wanted`, the first `per_class` of each. SpecError, with the nearest name, for an unknown class."""
    for kind in wanted:
        if kind not in kinds():
            near = difflib.get_close_matches(kind, kinds(), n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise SpecError(f"there is no prompt class {kind!r}", where="--classes", mend=f"{hint}Known: {', '.join(kinds())}")
    chosen = []
    for kind in dict.fromkeys(wanted):
        chosen += [prompt for prompt in shipped() if prompt.kind == kind][:per_class]
    return tuple(chosen)
