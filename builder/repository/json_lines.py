"""Histories as files of JSON lines, only ever appended to. A writer that was killed leaves half a line; it spoils no other."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def line(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False) + "\n"


def append(path: Path, lines: str, *, sync: bool) -> None:
    """Add whole lines; with `sync`, wait until they are on disk. OSError when the file cannot be written."""
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            lines = "\n" + lines
        file.write(lines.encode("utf-8"))
        if sync:
            file.flush()
            os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """Oldest first; lines that are no JSON object are left out, and a file that is not there has none. OSError when it cannot be read."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    documents = []
    for text in lines:
        try:
            document = json.loads(text)
        except ValueError:
            continue
        if isinstance(document, dict):
            documents.append(document)
    return documents
