"""A version takes over from another, in running servers and in the repository, all members together.

1. members load the new version beside the old one      a failure here leaves the old one serving
2. the ensemble's configuration names the new version   the moment at which it is live
3. the ensemble is loaded                               requests in flight keep the members that they started with
4. members drop what is not needed any more             Triton unloads a version when its last request has ended

After a publish the old version stays loaded (`versions.standby`), so that taking the new one back needs steps 2 and 3 only.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import CheckError, TandemError
from builder.repository import version_history
from builder.repository.ensemble import ModelNames
from builder.repository.live import live_version, standby_version, write_ensemble, write_members
from builder.repository.server_group import Server, ServerGroup
from builder.repository.version_history import FAILED, Event
from builder.repository.versions import Version


@dataclass(frozen=True)
class TakeOver:
    """`before` was live; `servers` took part, `unreachable` did not answer and will follow when they start again."""

    before: int | None
    after: int
    seconds: float  # until the last server answers with the new version
    servers: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()


def go_live(
    version: Version, servers: Sequence[Server], *, action: str, why: str = "", measured: Mapping[str, Any] | None = None
) -> TakeOver:
    """Under the repository's lock, on a complete version. CheckError when a server cannot load it: the old one is live as before.

    `why` and `measured` are for the history.
    """
    repository, pipeline = version.repository, version.pipeline
    names, began = ModelNames.of(pipeline), time.monotonic()
    live = live_version(repository, pipeline)
    before = live.number if live else None
    group = ServerGroup(servers)
    try:
        if live is not None and _standby(live) not in (None, version.number):
            _load(live, group)  # without its standby: three versions at once would be one too many for memory
        write_members(repository, pipeline, version.number, [before] if before else ())
        group.load(names.members)
        write_ensemble(repository, pipeline, version.number)
        group.load([names.ensemble])
    except TandemError as error:
        if live is not None:
            _restore(live, version.number, group)
        event = Event(FAILED, before, version.number, f"{action}: {error.what}")
        version_history.record(repository, pipeline, event)
        raise
    seconds = time.monotonic() - began
    version_history.record(repository, pipeline, Event(action, before, version.number, why, dict(measured or {})))
    _keep_standby(version, group)
    return TakeOver(before, version.number, seconds, tuple(s.name for s in group.reached), tuple(group.unreachable))


def load_standby(repository: Path, pipeline: str, servers: Sequence[Server]) -> None:
    """Under the repository's lock: servers that have just started load the version before the live one too, where `versions.standby`
    says so. Later than the live one, which need not wait for it."""
    live = live_version(repository, pipeline)
    if live is not None and _standby(live) is not None:
        _keep_standby(live, ServerGroup(servers))


def _restore(live: Version, failed: int, group: ServerGroup) -> None:
    """The old version is live again, in the repository first: a server that starts now must find it."""
    repository, pipeline = live.repository, live.pipeline
    write_members(repository, pipeline, live.number, [failed])
    write_ensemble(repository, pipeline, live.number)
    with suppress(CheckError):
        group.load([ModelNames.of(pipeline).ensemble])
    _keep_standby(live, group)


def _keep_standby(live: Version, group: ServerGroup) -> None:
    """Beside the live version its standby stays loaded, and nothing else. A server that refuses it does without."""
    standby = _standby(live)
    try:
        _load(live, group, () if standby is None else (standby,))
    except CheckError:
        with suppress(CheckError):  # what cannot be dropped takes memory and answers nothing
            _load(live, group)


def _standby(live: Version) -> int | None:
    version = standby_version(live.repository, live.pipeline, live)
    return version.number if version else None


def _load(live: Version, group: ServerGroup, beside: Collection[int] = ()) -> None:
    write_members(live.repository, live.pipeline, live.number, beside)
    group.load(ModelNames.of(live.pipeline).members)
