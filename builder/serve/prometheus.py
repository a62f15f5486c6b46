"""A Prometheus process with this project's rules, that watches servers of this machine."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from builder.errors import ServeError
from builder.serve import lifeline
from builder.serve.ports import require_free

CONFIGURATION = "prometheus.yml"
LOG = "prometheus.log"
READY_SECONDS = 30.0
END_SECONDS = 10.0
POLL_SECONDS = 0.2


@contextmanager
def prometheus(rules: Path, folder: Path, port: int, targets: dict[str, int], interval: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Prometheus that scrapes `targets` (port by job) every `interval`; its data and log are in `folder`.

    `rules` is the folder of ops/prometheus, whose configuration is taken with these ports. ServeError when it is not there, Prometheus is
    not installed, or not ready in time.
    """
    binary = shutil.which("prometheus")
    if binary is None:
        raise ServeError("prometheus is not installed", mend="On Debian: apt-get install prometheus")
    require_free("127.0.0.1", {"prometheus": port})
    file = folder / CONFIGURATION
    file.write_text(yaml.safe_dump(configuration(rules, targets, interval)), encoding="utf-8")
    command = [binary, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / LOG).open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", lifeline.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C comes to us alone
        )
    try:
        _wait_until_ready(process, port, folder / LOG)
        yield process
    finally:
        _end(process)


def configuration(rules: Path, targets: dict[str, int], interval: str) -> dict[str, Any]:
    """That of `rules` for other ports and without Alertmanager, which is not started here. ServeError when it cannot be read."""
    try:
        read: dict[str, Any] = yaml.safe_load((rules / CONFIGURATION).read_text(encoding="utf-8"))
    except OSError as error:
        raise ServeError(
            f"cannot be read ({error.strerror})", where=str(rules / CONFIGURATION), mend="Name the folder with --rules"
        ) from error
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str((rules / name).resolve()) for name in read["rule_files"]],
        "scrape_configs": [
            {"job_name": job["job_name"], "static_configs": [{"targets": [f"127.0.0.1:{targets[job['job_name']]}"]}]}
            for job in read["scrape_configs"]
        ],
    }


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not _ready(port):
        if process.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
            raise ServeError("prometheus did not become ready:\n" + "\n".join(last), mend="Its log names the cause")
        time.sleep(POLL_SECONDS)


def _ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/-/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
