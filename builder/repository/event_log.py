"""What a pipeline's servers did beside answering: versions loaded and unloaded, flags, transitions of the control.

JSON lines in `.flags/<pipeline>.events.jsonl`, beside the flags; never a prompt, an answer or a request id. Every replica that mounts
the repository appends to the same file under a lock. It is a record for people and alerts, not for finance: it is not synced, and the
oldest part goes when it has grown.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.errors import RepositoryError
from builder.repository import json_lines
from builder.repository.flag_store import FOLDER
from builder.repository.manifest import now

LARGEST = 1 << 20  # bytes, some 5,000 events; then the file makes room for a new one
KEPT = 3  # older files, .1 the youngest


class EventLog:
    """`append` is for a thread that nobody waits for."""

    def __init__(self, repository: Path, pipeline: str, version: str = "") -> None:
        self.path = repository / FOLDER / f"{pipeline}.events.jsonl"
        self._lock = repository / FOLDER / f"{pipeline}.events.lock"
        self._common = {"version": version, "server": f"{socket.gethostname()}:{os.getpid()}"}

    def append(self, event: str, **details: Any) -> None:
        """OSError when the repository cannot be written, as a read-only one."""
        line = json_lines.line({"when": now(), "event": event, **self._common, **details})
        self.path.parent.mkdir(exist_ok=True)
        with self._lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.path.exists() and self.path.stat().st_size + len(line) > LARGEST:
                self._rotate()
            json_lines.append(self.path, line, sync=False)

    def read(self) -> list[Mapping[str, Any]]:
        """Oldest first, rotated files included. Half lines of killed writers are left out. RepositoryError when it cannot be read."""
        events: list[Mapping[str, Any]] = []
        for path in [*(self._older(number) for number in range(KEPT, 0, -1)), self.path]:
            try:
                events += json_lines.read(path)
            except OSError as error:
                raise RepositoryError(f"cannot be read ({error.strerror})", where=str(path)) from error
        return events

    def _rotate(self) -> None:
        for number in range(KEPT, 1, -1):
            if self._older(number - 1).exists():
                self._older(number - 1).replace(self._older(number))
        self.path.replace(self._older(1))

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
