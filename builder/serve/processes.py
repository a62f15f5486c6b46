"""The processes of a running server on this machine: their CPU time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class ProcessUse:
    """`name` is tritonserver or, for the process of a python model, the model."""

    name: str
    cpu_seconds: float
    resident_bytes: int


def server_processes(metrics_port: int) -> list[ProcessUse]:
    """Of the tritonserver with this metrics port; empty when it runs elsewhere or not at all."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "tritonserver" and f"--metrics-port={metrics_port}" in (process.info["cmdline"] or ()):
            return list(_family(process))
    return []


def _family(server: psutil.Process) -> Iterator[ProcessUse]:
    for process in (server, *server.children(recursive=True)):
        try:
            with process.oneshot():
                times = process.cpu_times()
                name = "tritonserver" if process.pid == server.pid else _model(process.cmdline())
                yield ProcessUse(name, times.user + times.system, process.memory_info().rss)
        except psutil.Error:
            continue  # it ended meanwhile


def _model(command: list[str]) -> str:
    """The model a stub runs: it is started with the path MODEL/VERSION/model.py."""
    files = [Path(argument) for argument in command if argument.endswith("/model.py")]
    return files[0].parent.parent.name if files else "other"
