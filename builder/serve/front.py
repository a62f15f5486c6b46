"""A HAProxy process before a pipeline's servers: clients ask it, and a version that is tried gets a share of their requests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.errors import ServeError
from builder.serve import lifeline
from builder.serve.control import ModelControl
from builder.serve.front_control import SHARE, FrontControl, FrontNote, running_front
from builder.serve.ports import free_ports, require_free
from builder.spec.addresses import bracketed

TEMPLATE = "haproxy.cfg.jinja"
HEADER = "x-request-id"  # by which a request's version is chosen
DRAIN_SECONDS = 30  # for requests that run when the front is told to stop
READY_SECONDS = 10.0
POLL_SECONDS = 0.05


class Front:
    """Context manager: listening inside, gone outside, after the requests that run have been answered.

    `ports` are those for clients, http and grpc. `servers` serve the live version; they need their gRPC port. ServeError when there is
    none, HAProxy is not installed, a port is taken, or another front of the pipeline runs on this machine.
    """

    def __init__(
        self, repository: Path, pipeline: str, servers: Sequence[ModelControl], ports: Mapping[str, int], *, host: str = "127.0.0.1"
    ) -> None:
        self.repository, self.pipeline, self.host, self.ports = repository.resolve(), pipeline, host, dict(ports)
        self._servers = servers
        self._note = FrontNote(self.repository, pipeline)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        if running_front(self.repository, self.pipeline) is not None:
            raise ServeError(f"another front of {self.pipeline} runs", where=str(self.repository), mend="Stop it, or use it")
        if not self._servers:
            raise ServeError(f"no server of {self.pipeline} runs on this repository", mend="Start `builder serve` first")
        binary = shutil.which("haproxy", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
        if binary is None:
            raise ServeError("haproxy is not installed", mend="On Debian: apt-get install haproxy")
        require_free(self.host, self.ports)
        try:
            self._start(binary)
        except BaseException:  # Ctrl-C while waiting included
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def wait(self) -> int:
        """Until HAProxy ends; its exit status."""
        return self._process.wait() if self._process else 0

    def stop(self) -> None:
        """No new requests; those that run are answered. Safe to call twice."""
        self._note.remove()
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGUSR1)  # HAProxy's soft stop
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DRAIN_SECONDS + 5)
            process.kill()
            process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, binary: str) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="tandem-front-"))  # short: the path of a socket has 107 characters at most
        share, interface, log = folder / "share.map", folder / "admin.sock", folder / "haproxy.log"
        share.write_text(f"{SHARE} 0\n", encoding="utf-8")
        candidate = free_ports()
        file = folder / "haproxy.cfg"
        text = configuration(self.pipeline, self._servers, candidate, self.ports, self.host, str(interface), str(share))
        file.write_text(text, encoding="utf-8")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", lifeline.__file__, str(os.getpid()), binary, "-db", "-f", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C comes to us alone
            )
        control = FrontControl(self._process.pid, str(interface), str(share), self.ports, candidate)
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(control):
            if self._process.poll() is not None or time.monotonic() > deadline:
                what = "haproxy did not become ready:\n" + log.read_text(encoding="utf-8", errors="replace")[-1000:]
                raise ServeError(what, mend="Its log names the cause")
            time.sleep(POLL_SECONDS)
        self._note.write(control)


def configuration(
    model: str,
    servers: Sequence[ModelControl],
    candidate: Mapping[str, int],
    ports: Mapping[str, int],
    host: str,
    interface: str,
    share: str,
) -> str:
    """HAProxy's configuration; `interface` is the path of its socket, `share` that of the map with the candidate's share."""
    templates = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=templates, undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - no HTML
    live: list[dict[str, Any]] = [{"host": bracketed(server.host), "http": server.port, "grpc": server.grpc_port} for server in servers]
    return environment.get_template(TEMPLATE).render(
        model=model,
        host=bracketed(host),
        ports=ports,
        header=HEADER,
        socket=interface,
        map=share,
        live=live,
        candidate=candidate,
        drain_seconds=DRAIN_SECONDS,
    )


def _answers(control: FrontControl) -> bool:
    with contextlib.suppress(ServeError):
        return control.share() == 0
    return False
