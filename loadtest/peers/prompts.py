"""The prompts file: a JSON list of {"class": ..., "text": ...}, the chat template already applied to each text."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.peers.errors import PeersError

CLASSES = ("facts", "code", "rewrite")
_KEYS = ("class", "text")
_FORM = 'Write a JSON list of {"class": "facts|code|rewrite", "text": "the whole prompt"}'


@dataclass(frozen=True)
class Prompt:
    """`kind` is the prompt class, one of CLASSES."""

    kind: str
    text: str


def read_prompts(path: Path) -> list[Prompt]:
    """Read and check the prompts file. Raises PeersError, naming the prompt by its place in the list, from 0."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PeersError(f"the prompts file cannot be read ({error.strerror})", where=str(path), mend=_FORM) from error
    except UnicodeDecodeError as error:
        raise PeersError("the prompts file is not UTF-8", where=str(path), mend="Save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise PeersError(f"the prompts file is not JSON ({error.msg})", where=f"{path}:{error.lineno}", mend=_FORM) from error
    if not isinstance(document, list) or not document:
        raise PeersError("the prompts file holds no list of prompts", where=str(path), mend=_FORM)
    return [_prompt(item, f"{path}[{place}]") for place, item in enumerate(document)]


def _prompt(item: Any, where: str) -> Prompt:
    if not isinstance(item, dict):
        raise PeersError(f"a prompt is an object, not {type(item).__name__}", where=where, mend=_FORM)
    for key in item:
        if key not in _KEYS:
            raise PeersError(f"a prompt has no key {key}", where=where, mend=_nearest(key, _KEYS))
    for key in _KEYS:
        if not isinstance(item.get(key), str) or not item[key]:
            raise PeersError(f"the key {key} is missing or no text", where=where, mend=_FORM)
    if item["class"] not in CLASSES:
        raise PeersError(f"{item['class']} is not a prompt class", where=where, mend=_nearest(item["class"], CLASSES))
    return Prompt(item["class"], item["text"])


def _nearest(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]}" if close else f"Known are {', '.join(known)}"
