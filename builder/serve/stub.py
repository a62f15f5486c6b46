"""The process in which Triton's python backend runs one model of a server."""

from __future__ import annotations

import re
from pathlib import Path

from builder.serve.binary import STUB
from builder.serve.triton import Triton


def stub_process(server: Triton, model: str) -> Path | None:
    """Its folder in /proc; None when there is none, or it belongs to another user."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if STUB in command and server.shared_memory_prefix in command and f"/{model}/" in command:
            return process
    return None


def memory(process: Path, field: str) -> int | None:
    """Bytes of a field of /proc/PID/status, such as VmRSS (resident now) or VmHWM (most so far); None when it cannot be read."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", (process / "status").read_text(), flags=re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None
