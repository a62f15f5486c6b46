"""The texts that load tests ask: everyday chat of our own, and the classes of `builder bench`."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

SOURCES = (("loadtest", "prompts.jsonl"), ("builder.bench", "prompts.jsonl"))


@cache
def texts(kind: str) -> tuple[str, ...]:
    """All shipped texts of a class."""
    lines = [line for package, file in SOURCES for line in files(package).joinpath(file).read_text(encoding="utf-8").splitlines()]
    return tuple(entry["text"] for entry in map(json.loads, lines) if entry["class"] == kind)
