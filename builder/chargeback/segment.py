"""Segments: the files of a ledger. Each has one writer, grows only at its end, and is renamed when it is whole.

`DAY-WRITER-NUMBER.part` is being written and locked by its writer; `.jsonl` is sealed. A `.part` that nobody locks was
left by a killed writer: `repair` cuts off its torn last line, if it has one, and seals it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from builder.chargeback.record import is_whole
from builder.files import sync_folder

OPEN, SEALED, UNBORN = ".part", ".jsonl", ".new"


class Segment:
    """A segment being written. Not for two threads at once, but `descriptor` may be synced by another."""

    def __init__(self, folder: Path, day: str, writer: str, number: int) -> None:
        self.day = day
        self.records = 0
        self.size = 0  # bytes of whole lines
        self._path = folder / f"{day}-{writer}-{number:06d}{OPEN}"
        unborn = self._path.with_suffix(UNBORN)
        self.descriptor = os.open(unborn, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            unborn.rename(self._path)  # locked before anybody can see it, so that nobody takes it for abandoned
            sync_folder(folder)
        except OSError:
            os.close(self.descriptor)
            unborn.unlink(missing_ok=True)
            raise

    def append(self, line: bytes) -> None:
        """All of the line, or OSError and nothing of it. A newline stands before a record: then a record is whole or it is no JSON."""
        line = b"\n" + line if self.records else line
        try:
            written = os.write(self.descriptor, line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
        except OSError:
            # Should this fail too, the part that stays is no whole line and so no record
            os.ftruncate(self.descriptor, self.size)
            os.lseek(self.descriptor, self.size, os.SEEK_SET)
            raise
        self.size += len(line)
        self.records += 1

    def seal(self) -> None:
        """On disk for good, under its final name."""
        os.fsync(self.descriptor)
        self._path.rename(self._path.with_suffix(SEALED))
        sync_folder(self._path.parent)
        self.close()

    def close(self) -> None:
        """Leave it to whoever repairs it."""
        os.close(self.descriptor)


def repair(folder: Path) -> int:
    """Seal what killed writers left; the bytes of torn lines that were cut off."""
    return sum(_repair(path) for path in sorted(folder.glob(f"*{OPEN}"))) + sum(map(_remove_unborn, folder.glob(f"*{UNBORN}")))


def _repair(path: Path) -> int:
    with _abandoned(path) as descriptor:
        if descriptor is None:
            return 0
        with os.fdopen(os.dup(descriptor), "rb") as file:
            whole = whole_length(file.read())
        torn = os.fstat(descriptor).st_size - whole
        os.ftruncate(descriptor, whole)
        os.fsync(descriptor)
        path.rename(path.with_suffix(SEALED))
        sync_folder(path.parent)
        return torn


def _remove_unborn(path: Path) -> int:
    with _abandoned(path) as descriptor:
        if descriptor is not None:
            path.unlink()
    return 0


@contextlib.contextmanager
def _abandoned(path: Path) -> Iterator[int | None]:
    """The locked file, if no writer lives; None when one does or another process has repaired it meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor if path.exists() else None
    except BlockingIOError:
        yield None
    finally:
        os.close(descriptor)


def whole_length(content: bytes) -> int:
    """Bytes up to the end of the last whole line."""
    end = len(content)
    while end > 0:
        before = content.rfind(b"\n", 0, end)
        if is_whole(content[before + 1 : end]):
            return end
        end = before
    return 0
