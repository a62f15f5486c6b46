"""One writer at a time: an advisory lock on a pipeline's part of the repository."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder.errors import RepositoryError

BUILD = "build"  # held while a version is made and verified; a rollback meanwhile is not kept waiting
CANARY = "canary"  # held while a version is tried on a share of the requests
POLL_SECONDS = 0.05


@contextmanager
def locked(repository: Path, pipeline: str, what: str = "", *, wait: float = 0.0) -> Iterator[None]:
    """Hold `.<pipeline>.lock`, or `.<pipeline>.<what>.lock`; the plain one guards which versions there are and which is live.

    The kernel releases it when the holder dies, so a killed publish blocks nobody. RepositoryError when another process
    still holds it after `wait` seconds, or the repository cannot be written.
    """
    path = repository / (f".{pipeline}.{what}.lock" if what else f".{pipeline}.lock")
    try:
        repository.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RepositoryError(
            f"cannot be written ({error.strerror})", where=str(repository), mend="Check its owner and permissions"
        ) from error
    try:
        deadline = time.monotonic() + wait
        while not _taken(handle):
            if time.monotonic() >= deadline:
                found = f"another command is publishing {pipeline}"
                raise RepositoryError(found, where=str(path), mend="Wait until it has ended, then try again")
            time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
