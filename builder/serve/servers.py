"""Which servers run on a repository: each leaves a note in it while it lives, so that a new version finds them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from builder.errors import ServeError
from builder.files import write_atomically
from builder.serve.control import ModelControl

FOLDER = ".servers"  # hidden: no model for Triton


class ServerNote:
    """`.servers/<pipeline>/<hostname>-<pid>.json`. A repository that cannot be written gets none: name such servers with --server."""

    def __init__(self, repository: Path, pipeline: str) -> None:
        self._path = repository / FOLDER / pipeline / f"{socket.gethostname()}-{os.getpid()}-{id(self):x}.json"

    def write(self, host: str, ports: Mapping[str, int]) -> None:
        """`ports` by protocol: http, grpc, metrics."""
        note = {"hostname": socket.gethostname(), "pid": os.getpid(), "host": host, "ports": dict(ports)}
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(note) + "\n")

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def running_servers(repository: Path, pipeline: str) -> list[ModelControl]:
    """Those whose note is there and whose process lives. Of another machine only the note is known: it may not answer."""
    found = []
    for path in sorted((repository / FOLDER / pipeline).glob("*.json")):
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            ports = {name: int(port) for name, port in note["ports"].items()}
            control = ModelControl(str(note["host"]), ports["http"], ports.get("grpc"), ports.get("metrics"))
            here, pid = note["hostname"] == socket.gethostname(), int(note["pid"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # removed meanwhile, or no note of ours
        if here and not psutil.pid_exists(pid):
            with suppress(OSError):
                path.unlink()
            continue
        found.append(control)
    return found


def named_server(address: str) -> ModelControl:
    """From HOST:PORT of the HTTP endpoint. ServeError for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ServeError("a server is named HOST:PORT, its HTTP endpoint", where=address)
    return ModelControl(host.strip("[]"), int(port))
