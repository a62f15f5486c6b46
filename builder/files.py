"""File operations that survive a crash: atomic writes, synced folders, linked trees."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

COPY_INSTEAD = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)  # other file system, or one that cannot


def write_atomically(path: Path, text: str) -> None:
    """Readers see the old text or the new one, never a part, even after a power cut."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    staged = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staged.chmod(0o644)  # mkstemp gives 0600, but the server may run as another user
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def link_or_copy(source: Path, target: Path) -> None:
    """Hard link: an engine takes its space once, in the cache. Copied where a link is impossible."""
    try:
        os.link(source.resolve(), target)
    except OSError as error:
        if error.errno not in COPY_INSTEAD:
            raise
        copy_file(source, target)


def link_tree(source: Path, target: Path) -> None:
    """Every file of `source`, at its place below `target`. (shutil.copytree would bundle failures into one error without a number.)"""
    _place_tree(source, target, link_or_copy)


def copy_tree(source: Path, target: Path) -> None:
    """Copies of every file of `source`, at its place below `target`. They take no space of their own where the file system can share it."""
    _place_tree(source, target, copy_file)


def _place_tree(source: Path, target: Path, place: Callable[[Path, Path], None]) -> None:
    for path in files_below(source):
        own = target / path.relative_to(source)
        own.parent.mkdir(parents=True, exist_ok=True)
        place(path, own)


def copy_file(source: Path, target: Path) -> None:
    """By the kernel, which shares the blocks on XFS and btrfs."""
    with source.open("rb") as read, target.open("wb") as written:
        left = os.fstat(read.fileno()).st_size
        try:
            while left > 0 and (copied := os.copy_file_range(read.fileno(), written.fileno(), left)) > 0:
                left -= copied
        except OSError as error:
            if error.errno not in COPY_INSTEAD:
                raise
        if left > 0:
            shutil.copyfileobj(read, written)


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
