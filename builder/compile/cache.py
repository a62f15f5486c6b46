"""The engine cache: folders named by the content they were made of. A folder is there completely or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from builder.errors import BuildError


def default_cache() -> Path:
    """TANDEM_CACHE, else tandem/ in the user's cache folder."""
    if named := os.environ.get("TANDEM_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"


def cached_folder(cache: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """cache/name, made by `fill(folder)` beside it and renamed into place when it is not there yet.

    Two builds that make the same folder at once both succeed: the later rename finds it there and throws its own away.
    Raises BuildError when the cache cannot be written.
    """
    target = cache / name
    if target.is_dir():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=cache, prefix=f".{name}."))
    except OSError as error:
        raise _unwritable(cache, error) from error
    try:
        staged.chmod(0o755)  # mkdtemp gives 0700, but the server may run as another user
        fill(staged)
        if not target.is_dir():
            staged.rename(target)
    except OSError as error:
        if not target.is_dir():
            raise _unwritable(cache, error) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target


def _unwritable(cache: Path, error: OSError) -> BuildError:
    return BuildError(
        f"the engine cache cannot be written ({error.strerror or error})",
        where=str(cache),
        mend="Free disk space, or name another folder in TANDEM_CACHE",
    )
