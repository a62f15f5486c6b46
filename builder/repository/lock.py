"""One writer at a time: an advisory lock on a pipeline's part of the repository."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder.errors import RepositoryError


@contextmanager
def locked(repository: Path, pipeline: str) -> Iterator[None]:
    """Hold `.<pipeline>.lock`. The kernel releases it when the holder dies, so a killed publish blocks nobody.

    RepositoryError when another process holds it or the repository cannot be written.
    """
    path = repository / f".{pipeline}.lock"
    try:
        repository.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RepositoryError(
            f"cannot be written ({error.strerror})", where=str(repository), mend="Check its owner and permissions"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another command is publishing {pipeline}"
            raise RepositoryError(what, where=str(path), mend="Wait until it has ended, then try again") from None
        yield
    finally:
        os.close(handle)
