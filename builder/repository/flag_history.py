"""The audit of a pipeline's flags: one JSON line a change, only ever appended."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.repository import json_lines
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


def append(path: Path, changes: Iterable[Change]) -> None:
    """Write the lines and wait until they are on disk."""
    json_lines.append(path, "".join(json_lines.line(change.to_json()) for change in changes), sync=True)


def read(path: Path) -> list[Change]:
    """Oldest first. Lines that are no change are left out."""
    changes = []
    for document in json_lines.read(path):
        with contextlib.suppress(TypeError):  # other keys
            changes.append(Change(**document))
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
