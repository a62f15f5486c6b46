"""The flags file of a pipeline beside its models: read by every replica that mounts the repository, written by operators."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from builder.errors import FlagError, RepositoryError
from builder.files import sync_folder, write_atomically
from builder.repository import flag_history
from builder.repository.ensemble import ModelNames
from builder.repository.flag_history import Change
from builder.repository.flags import WORDS, Flags, parse
from builder.repository.manifest import now

FOLDER = ".flags"  # hidden: no model for Triton


class FlagStore:
    """`.flags/<pipeline>.json`, its lock and its history. A missing file means that nothing is set."""

    def __init__(self, repository: Path, pipeline: str) -> None:
        self.model = repository / ModelNames.of(pipeline).decode
        self.folder = repository / FOLDER
        self.path = self.folder / f"{pipeline}.json"
        self._history = self.folder / f"{pipeline}.history.jsonl"
        self._lock = self.folder / f"{pipeline}.lock"

    def read(self) -> Flags:
        """FlagError when the file cannot be read or understood."""
        try:
            return parse(self.path.read_text(encoding="utf-8"), str(self.path))
        except FileNotFoundError:
            return Flags()
        except (OSError, UnicodeDecodeError) as error:
            raise FlagError(f"cannot be read ({error})", where=str(self.path)) from error

    def history(self) -> list[Change]:
        """Oldest first. FlagError when it cannot be read."""
        try:
            return flag_history.read(self._history)
        except OSError as error:
            raise FlagError(f"cannot be read ({error.strerror})", where=str(self._history)) from error

    def last_known(self) -> Flags:
        """What the history says is set: stands in for a file that is broken."""
        return flag_history.replay(self.history())

    def set(self, values: Mapping[str, bool | None], why: str, tenant: str | None = None) -> list[Change]:
        """Change flags (None takes a setting away) and say which changed. RepositoryError when that cannot be written.

        The history is on disk before the flags are: a crash between the two leaves the old flags in force and a line
        too many, never a change without a line.
        """
        try:
            with self._locked():
                try:
                    before, broken = self.read(), False
                except FlagError:  # a broken file must not keep the kill switch from working
                    before, broken = self.last_known(), True
                changes = _changes(before, values, why, tenant)
                if changes:
                    flag_history.append(self._history, changes)
                if changes or broken:
                    after = before
                    for flag, value in values.items():
                        after = after.set(flag, value, tenant)
                    write_atomically(self.path, after.to_text())
                return changes
        except OSError as error:
            where = str(error.filename or self.folder)
            what = f"the flags cannot be written ({error.strerror or error})"
            raise RepositoryError(what, where=where, mend="Free space or mend permissions") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time; others wait the milliseconds it takes. The kernel releases the lock of a killed writer."""
        if not self.folder.is_dir():
            self.folder.mkdir(exist_ok=True)
            sync_folder(self.folder.parent)
        with self._lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _changes(before: Flags, values: Mapping[str, bool | None], why: str, tenant: str | None) -> list[Change]:
    when, who = now(), flag_history.who()
    return [
        Change(when, who, why, flag, tenant, WORDS[before.get(flag, tenant)], WORDS[value])
        for flag, value in values.items()
        if before.get(flag, tenant) is not value
    ]
