"""The life of the server process: ready, told to stop, crashed; nothing stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from builder.errors import RepositoryError, ServeError
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from tests.integration.conftest import publish_echo, tiny_spec
from tests.integration.talk import eventually, generate

SHARED_MEMORY = Path("/dev/shm")


def group_of(leader: int) -> list[str]:
    """Processes of the server's group that still run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = process.joinpath("stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            found.append(process.name)
    return found


def regions(prefix: str) -> list[str]:
    return [path.name for path in SHARED_MEMORY.glob(f"{prefix}*")]


def child_of(parent: int) -> tuple[int, str]:
    """The tritonserver that a process started, and the prefix of its shared memory."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = process.joinpath("stat").read_text().rpartition(")")[2].split()
            arguments = process.joinpath("cmdline").read_text().split("\0")
        except OSError:
            continue
        if int(fields[1]) == parent and arguments[0].endswith("tritonserver"):
            backend = next(argument for argument in arguments if argument.startswith("--backend-config=python,shm-region-prefix-name="))
            return int(process.name), backend.rpartition("=")[2]
    raise AssertionError("no tritonserver was started")


def test_a_server_is_ready_within_seconds_and_leaves_nothing_behind(echo_repository: Path) -> None:
    started = time.monotonic()
    with Triton(echo_repository, "echo", free_ports()) as server:
        assert time.monotonic() - started < 20
        leader = server.pid
        assert leader
        assert len(group_of(leader)) == 4  # the server and a stub for each python model
        assert regions(server.shared_memory_prefix)
        assert generate(server, text_input="ok", max_tokens=2)["text_output"] == "ok"
    assert group_of(leader) == []
    assert regions(server.shared_memory_prefix) == []


def test_a_server_that_crashed_leaves_nothing_behind(echo_repository: Path) -> None:
    with Triton(echo_repository, "echo", free_ports()) as server:
        leader = server.pid
        assert leader
        server.signal(signal.SIGKILL)
        server.wait()
    assert group_of(leader) == []
    assert regions(server.shared_memory_prefix) == []


def test_a_port_in_use_is_named_with_its_process(echo_repository: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        ports = free_ports() | {"grpc": holder.getsockname()[1]}
        with pytest.raises(ServeError, match=rf"port {ports['grpc']} \(grpc\) is in use by .* \(pid {os.getpid()}\)"):
            Triton(echo_repository, "echo", ports).start()


def test_a_server_that_cannot_load_its_model_shows_the_log(tmp_path: Path, tiny_weights: Path) -> None:
    publish_echo(tmp_path, tiny_weights)
    (tmp_path / "echo_decode" / "1" / "model.py").write_text("raise RuntimeError('no such engine')\n")
    server = Triton(tmp_path, "echo", free_ports())
    with pytest.raises(ServeError, match="no such engine"):
        server.start()
    assert regions(server.shared_memory_prefix) == []


def test_an_empty_repository_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="no version of echo is published"):
        Triton(tmp_path, "echo", free_ports()).start()


def test_what_a_killed_publish_left_is_not_served(tmp_path: Path, tiny_weights: Path) -> None:
    publish_echo(tmp_path, tiny_weights)
    (tmp_path / "echo_decode" / "2").mkdir()
    with Triton(tmp_path, "echo", free_ports()) as server:
        assert generate(server, text_input="ok", max_tokens=2)["text_output"] == "ok"
    assert not (tmp_path / "echo_decode" / "2").exists()


@contextmanager
def builder_serve(folder: Path, repository: Path, weights: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, int], str]]:
    """`builder serve` in a process of its own, ready; with its ports and what it showed."""
    ports = free_ports()
    spec = tiny_spec("echo", weights, serving={f"{name}_port": port for name, port in ports.items()})
    pipeline = folder / "echo.yaml"
    pipeline.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    code = "import typer; from builder.cli.serve import serve; typer.run(serve)"
    command = [sys.executable, "-c", code, str(pipeline), "--repository", str(repository), "--log", str(folder / "log")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        shown = ""
        while "metrics" not in shown:
            line = process.stderr.readline() if process.stderr else ""
            assert line, shown
            shown += line
        yield process, ports, shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_builder_serve_ends_cleanly_on_a_signal(tmp_path: Path, echo_repository: Path, tiny_weights: Path, number: int) -> None:
    with builder_serve(tmp_path, echo_repository, tiny_weights) as (process, ports, shown):
        assert f"127.0.0.1:{ports['http']}" in shown
        server, prefix = child_of(process.pid)
        assert regions(prefix)
        process.send_signal(number)
        assert process.wait(30) == 0
    assert group_of(server) == []
    assert regions(prefix) == []


def test_the_server_ends_when_builder_serve_is_killed(tmp_path: Path, echo_repository: Path, tiny_weights: Path) -> None:
    with builder_serve(tmp_path, echo_repository, tiny_weights) as (process, _, _):
        server, prefix = child_of(process.pid)
        process.kill()
    eventually(lambda: group_of(server) == [])
    assert regions(prefix) == []
