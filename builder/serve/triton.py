"""A tritonserver process that serves one pipeline of a repository, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from builder.errors import RepositoryError, ServeError
from builder.repository.ensemble import ModelNames
from builder.repository.go_live import load_standby
from builder.repository.layout import GRPC_ADDRESS
from builder.repository.live import recover, serving_version
from builder.repository.lock import locked
from builder.repository.rollback import LOCK_WAIT
from builder.serve import lifeline
from builder.serve.binary import TritonBinary, environment, find_binary, make_backends
from builder.serve.control import ModelControl
from builder.serve.ports import require_free
from builder.serve.servers import ServerNote
from builder.spec.addresses import bracketed, reachable
from builder.spec.serving import FORWARDED_HEADERS

DRAIN_SECONDS = 10  # tritonserver waits this long for running requests when told to stop
LAST_LINES = 15
POLL_SECONDS = 0.1


class Triton:
    """Context manager: started and ready inside, gone outside (process group, shared memory, private folder).

    `log` receives the server's lines as they come; the last ones are kept for the error when it dies.
    """

    def __init__(
        self,
        repository: Path,
        pipeline: str,
        ports: Mapping[str, int],  # http, grpc, metrics
        *,
        host: str = "127.0.0.1",
        binary: Path | None = None,
        log: TextIO | None = None,
        ready_timeout: float = 120.0,  # seconds
        variables: Mapping[str, str] | None = None,  # of the server's environment, beside ours
    ) -> None:
        self.repository = repository.resolve()
        self.pipeline = pipeline
        self.ports = dict(ports)
        self.host = host
        self._binary = binary
        self._log = log
        self._ready_timeout = ready_timeout
        self._variables = dict(variables or {})
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._pump: threading.Thread | None = None
        self._standby: threading.Thread | None = None
        self._folder: Path | None = None
        self.shared_memory_prefix = ""
        self._note = ServerNote(self.repository, pipeline)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and wait until the ensemble is ready.

        RepositoryError when nothing is published; ServeError for a port in use, no binary, death or no readiness in time.
        """
        self._recover()
        starting = serving_version(self.repository, self.pipeline).number
        binary = find_binary(self._binary)
        require_free(self.host, self.ports)
        try:
            self._note.write(reachable(self.host), self.ports)
            self._launch(binary)
            self._wait_until_ready()
            self._catch_up(starting)
            self._load_standby()
        except BaseException:  # Ctrl-C while waiting included
            self.stop()
            raise

    def wait(self) -> int:
        """Until the server ends; its exit status."""
        return self._process.wait() if self._process else 0

    def signal(self, number: int) -> None:
        if self._process and self._process.poll() is None:
            self._process.send_signal(number)

    def stop(self) -> None:
        """Ask, wait while running requests end, then kill; a Ctrl-C meanwhile kills at once. Safe to call twice."""
        process, self._process = self._process, None
        self._note.remove()
        try:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(DRAIN_SECONDS + 5)
        finally:
            if process is not None:
                _kill_group(process.pid)  # a stub outlives a server that crashed
                process.wait()
                if self._standby is not None:
                    self._standby.join()  # the load that it waits for has failed by now
                self._close_log(process)
            self._remove_traces()

    def _close_log(self, process: subprocess.Popen[str]) -> None:
        if self._pump is not None:
            self._pump.join(timeout=5)
        if process.stdout is not None:
            process.stdout.close()

    def _remove_traces(self) -> None:
        if self._folder is not None:
            for region in Path("/dev/shm").glob(f"{self.shared_memory_prefix}*"):  # noqa: S108 - where the backend puts its regions
                region.unlink(missing_ok=True)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _recover(self) -> None:
        """What a killed publish or rollback left must not be loaded. A read-only repository is served as it is."""
        if os.access(self.repository, os.W_OK):
            with locked(self.repository, self.pipeline, wait=LOCK_WAIT):
                recover(self.repository, self.pipeline)

    def _catch_up(self, starting: int) -> None:
        """Another version went live while this server could not be told yet."""
        if serving_version(self.repository, self.pipeline).number != starting:
            control = ModelControl(reachable(self.host), self.ports["http"])
            for model in (*ModelNames.of(self.pipeline).members, self.pipeline):
                control.load(model)

    def _load_standby(self) -> None:
        """The version before joins the live one while that serves already."""
        if os.access(self.repository, os.W_OK):
            self._standby = threading.Thread(target=self._load_standby_now, daemon=True, name="tandem-standby")
            self._standby.start()

    def _load_standby_now(self) -> None:
        control = ModelControl(reachable(self.host), self.ports["http"])
        with contextlib.suppress(RepositoryError), locked(self.repository, self.pipeline, wait=LOCK_WAIT):
            load_standby(self.repository, self.pipeline, [control])

    def _launch(self, binary: TritonBinary) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tandem-triton-"))
        self.shared_memory_prefix = f"{self._folder.name}-"
        backends = make_backends(binary, self._folder)
        self._process = subprocess.Popen(
            [sys.executable, "-I", lifeline.__file__, str(os.getpid()), str(binary.server), *self._arguments(backends)],
            env=environment(binary) | {GRPC_ADDRESS: f"{bracketed(reachable(self.host))}:{self.ports['grpc']}"} | self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=self._folder,  # the stub looks for modules in its working directory first
            start_new_session=True,  # the terminal's Ctrl-C comes to us alone; we pass it on
        )
        self._pump = threading.Thread(target=self._pump_log, args=(self._process,), daemon=True)
        self._pump.start()

    def _arguments(self, backends: Path) -> list[str]:
        ports = [f"--{name}-port={port}" for name, port in self.ports.items()]
        addresses = [f"--{name}-address={self.host}" for name in self.ports]
        return [
            f"--model-repository={self.repository}",
            f"--backend-directory={backends}",
            f"--backend-config=python,shm-region-prefix-name={self.shared_memory_prefix}",
            "--model-control-mode=explicit",
            f"--load-model={self.pipeline}",  # the ensemble brings its steps
            "--disable-auto-complete-config",  # config.pbtxt is whole; completing it would start each stub twice
            f"--grpc-header-forward-pattern={FORWARDED_HEADERS}",
            f"--exit-timeout-secs={DRAIN_SECONDS}",
            "--log-info=false",
            *ports,
            *addresses,
        ]

    def _pump_log(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            if line.strip():
                self._lines.append(line.rstrip())
                if self._log is not None:
                    self._log.write(line)
                    self._log.flush()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_timeout
        while not model_ready(self.host, self.ports["http"], self.pipeline):
            status = self._process.poll() if self._process else None
            if status is not None:
                if self._pump is not None:
                    self._pump.join(timeout=5)
                raise ServeError(f"tritonserver ended with status {status}:\n" + "\n".join(self._lines), mend="Its log names the cause")
            if time.monotonic() > deadline:
                what = f"tritonserver was not ready after {self._ready_timeout:.0f} s:\n" + "\n".join(self._lines)
                raise ServeError(what, mend="Its log names the cause")
            time.sleep(POLL_SECONDS)


def model_ready(host: str, port: int, model: str) -> bool:
    """Whether a server at this HTTP port has the model loaded."""
    connection = http.client.HTTPConnection(reachable(host), port, timeout=5)
    try:
        connection.request("GET", f"/v2/models/{model}/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
