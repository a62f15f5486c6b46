"""Run a model's code against tests, in a process of its own with little time, memory and reach."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

from builder.quality import sandbox_child

SECONDS = 2  # CPU time; the wall clock gets a little more, for a loaded machine
WALL_SECONDS = 10.0
MEMORY = 256 << 20  # bytes of address space
_FENCE = re.compile(r"```[a-zA-Z0-9]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def passes(answer: str, tests: str) -> bool:
    """Whether the assertions in `tests` hold after the answer's code. Whatever goes wrong is False."""
    word = secrets.token_hex(16)
    job = {"code": code_of(answer), "tests": tests, "word": word, "seconds": SECONDS, "memory": MEMORY}
    command = [sys.executable, "-I", "-S", sandbox_child.__file__]
    with tempfile.TemporaryDirectory(prefix="tandem-code-") as folder:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        try:
            out, _ = process.communicate(json.dumps(job), timeout=WALL_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode == 0 and word in out


def code_of(answer: str) -> str:
    """The first fenced block, cut off or not, else the whole answer."""
    found = _FENCE.search(answer)
    return found.group(1) if found else answer
