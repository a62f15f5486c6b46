"""What a running front (builder/serve/front.py) is told and asked: HAProxy's runtime interface, found by the front's note."""

from __future__ import annotations

import csv
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from builder.errors import ServeError
from builder.files import write_atomically

FOLDER = ".fronts"  # hidden: no model for Triton
TIMEOUT = 5.0  # seconds
SHARE = "share"  # the key of the map that holds the candidate's share
CANDIDATE = "candidate"


@dataclass(frozen=True)
class FrontControl:
    """`ports` are those that clients use; the version that is tried must be served at `candidate` (ports by protocol), on this machine."""

    pid: int
    socket: str  # path
    map: str  # path
    ports: Mapping[str, int]
    candidate: Mapping[str, int]

    def set_share(self, percent: int) -> None:
        """Of the requests to come. ServeError when the front cannot be reached."""
        self._ask(f"set map {self.map} {SHARE} {percent}")

    def share(self) -> int:
        for line in self._ask(f"show map {self.map}").splitlines():
            _, key, value = line.split()
            if key == SHARE:
                return int(value)
        raise ServeError("has no share in its map", where=self.socket, mend="Start `builder front` again")

    def sees_candidate(self) -> bool:
        """Whether requests would reach it, by each protocol."""
        return all(row["status"].startswith("UP") for row in self._candidates())

    def candidate_requests(self) -> int:
        """That are being answered by the version that is tried, or wait for it."""
        return sum(int(row["scur"]) + int(row["qcur"]) for row in self._candidates())

    def _candidates(self) -> list[dict[str, str]]:
        rows = csv.DictReader(self._ask("show stat").removeprefix("# ").splitlines())
        return [row for row in rows if row["svname"] == CANDIDATE]

    def _ask(self, command: str) -> str:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(TIMEOUT)
                connection.connect(self.socket)
                connection.sendall(f"{command}\n".encode())
                return b"".join(_until_closed(connection)).decode().strip()
        except OSError as error:
            raise ServeError(f"the front cannot be reached ({error})", where=self.socket, mend="Start `builder front` again") from error


def _until_closed(connection: socket.socket) -> Iterator[bytes]:
    while part := connection.recv(1 << 16):
        yield part


class FrontNote:
    """`.fronts/<pipeline>/<hostname>.json`: how `builder promote` on this machine finds the front."""

    def __init__(self, repository: Path, pipeline: str) -> None:
        self._path = _note(repository, pipeline)

    def write(self, control: FrontControl) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(asdict(control)) + "\n")

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def running_front(repository: Path, pipeline: str) -> FrontControl | None:
    """The one on this machine whose process lives."""
    try:
        note: dict[str, Any] = json.loads(_note(repository, pipeline).read_text(encoding="utf-8"))
        control = FrontControl(**note)
    except (OSError, ValueError, TypeError):
        return None  # none, or no note of ours
    return control if psutil.pid_exists(control.pid) else None


def _note(repository: Path, pipeline: str) -> Path:
    return repository / FOLDER / pipeline / f"{socket.gethostname()}.json"
