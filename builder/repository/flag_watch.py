"""A running server's eye on the flags file: a stat each time, and a read only when the file is another one."""

from __future__ import annotations

from builder.errors import FlagError
from builder.repository.flag_store import FlagStore
from builder.repository.flags import Flags

Signature = tuple[int, int, int] | None  # mtime in ns, inode, size; None without a file


class FlagWatch:
    """`flags` are the last good ones; `broken` says why the file holds no better ones, None when all is well."""

    def __init__(self, store: FlagStore) -> None:
        self.flags = Flags()
        self.broken: FlagError | None = None
        self._store = store
        self._started = False
        self._seen: Signature = None

    def poll(self) -> bool:
        """Look again. True on the first call, and when `flags` or `broken` may have changed."""
        try:
            seen = self._signature()
            if self._started and seen == self._seen and self.broken is None:
                return False
            flags, broken = self._store.read(), None
        except FlagError as error:
            seen, broken = None, error  # read again each time: what is mended on a disk need not change the file
            flags = self.flags if self._started else self._last_known()
        changed = not self._started or flags != self.flags or str(broken) != str(self.broken)
        self.flags, self.broken, self._seen, self._started = flags, broken, seen, True
        return changed

    def _signature(self) -> Signature:
        """FlagError when the model is out of sight too: an unmounted repository must not turn everything on."""
        path = self._store.path
        try:
            found = path.stat()
        except FileNotFoundError:
            if not self._store.model.is_dir():
                raise FlagError("the model's folder is gone", where=str(self._store.model), mend="Mount the repository again") from None
            return None
        except OSError as error:
            raise FlagError(f"cannot be read ({error.strerror})", where=str(path)) from error
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _last_known(self) -> Flags:
        """A server that starts beside a broken file knows no flags yet; the history does."""
        try:
            return self._store.last_known()
        except FlagError:
            return Flags()
