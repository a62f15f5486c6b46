"""The audit of a pipeline's flags: one JSON line a change, only ever appended."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from builder.repository.flags import VALUES, Flags


@dataclass(frozen=True)
class Change:
    """Who set what, when (UTC, ISO 8601) and why. `old` and `new` are on, off or default; tenant None is the whole pipeline."""

    when: str
    who: str
    why: str
    flag: str
    tenant: str | None
    old: str
    new: str

    def to_json(self) -> dict[str, str | None]:
        return asdict(self)


class Record(Protocol):
    """What a history keeps: this one's changes, or another's."""

    def to_json(self) -> dict[str, Any]: ...


def append(path: Path, changes: Iterable[Record]) -> None:
    """Write the lines and wait until they are on disk."""
    lines = "".join(json.dumps(change.to_json(), ensure_ascii=False) + "\n" for change in changes)
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            lines = "\n" + lines  # a writer was killed inside its line: it must not spoil this one
        file.write(lines.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Change]:
    """Oldest first. Lines that are no change, such as the half line of a killed writer, are left out."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    changes = []
    for line in lines:
        try:
            changes.append(Change(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return changes


def replay(changes: Iterable[Change]) -> Flags:
    """The flags after all these changes."""
    flags = Flags()
    for change in changes:
        flags = flags.set(change.flag, VALUES.get(change.new), change.tenant)
    return flags


def who() -> str:
    """user@host. A container may run as a user without a name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
