"""Take a version back: the one before it, or a named one, goes live again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.errors import CheckError, RepositoryError
from builder.repository.go_live import TakeOver, go_live
from builder.repository.live import previous_version, recover
from builder.repository.lock import locked
from builder.repository.server_group import Server
from builder.repository.version_history import ROLLBACK
from builder.repository.versions import Version, find_version

LOCK_WAIT = 30.0  # seconds: a version that is just going live is waited for


def roll_back(repository: Path, pipeline: str, to: int | None, servers: Sequence[Server], why: str = "") -> TakeOver:
    """Version `to`, or the one that was live before, goes live in the repository and in `servers`.

    RepositoryError for no such version; CheckError when its files do not match its manifest, or a server cannot load it:
    then the live version stays.
    """
    with locked(repository, pipeline, wait=LOCK_WAIT):
        live = recover(repository, pipeline)
        if live is None:
            raise RepositoryError(f"no version of {pipeline} is published", where=str(repository), mend="Run `builder build` first")
        target = find_version(repository, pipeline, to) if to is not None else previous_version(repository, pipeline, live)
        if target is None:
            what = f"version {live.number} is the only one: there is nothing to go back to"
            raise RepositoryError(what, where=str(repository), mend="`builder flags set P.yaml all=off` decodes plainly at once")
        require_unchanged(target)
        return go_live(target, servers, action=ROLLBACK, why=why)


def require_unchanged(version: Version) -> None:
    """CheckError when a file of the version does not match its manifest."""
    try:
        version.manifest.check(version.folders)
    except RepositoryError as error:
        raise CheckError(f"version {version.number} must not go live: {error.what}", where=error.where, mend=error.mend) from error
