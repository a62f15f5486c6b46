"""A version takes over from another, in running servers and in the repository, all members together.

1. members load the new version beside the old one      a failure here leaves the old one serving
2. the ensemble's configuration names the new version   the moment at which it is live
3. the ensemble is loaded                               requests in flight keep the members that they started with
4. members drop the old version                         Triton unloads it when its last request has ended
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from builder.errors import CheckError, ServeError, TandemError
from builder.repository import version_history
from builder.repository.ensemble import ModelNames
from builder.repository.live import live_version, write_ensemble, write_members
from builder.repository.version_history import FAILED, Event
from builder.repository.versions import Version


class Server(Protocol):
    """A running Triton on this repository."""

    @property
    def name(self) -> str: ...

    def load(self, model: str) -> None:
        """Read the model's configuration again and load what it names. CheckError when a version cannot be loaded (what served
        goes on serving), ServeError when the server cannot be reached."""
        ...


@dataclass(frozen=True)
class TakeOver:
    """`before` was live; `servers` took part, `unreachable` did not answer and will follow when they start again."""

    before: int | None
    after: int
    seconds: float  # until the last server answers with the new version
    servers: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()


def go_live(version: Version, servers: Sequence[Server], *, action: str, why: str = "") -> TakeOver:
    """Under the repository's lock, on a complete version. CheckError when a server cannot load it: the old one is live as before."""
    repository, pipeline = version.repository, version.pipeline
    names, began = ModelNames.of(pipeline), time.monotonic()
    live = live_version(repository, pipeline)
    before = live.number if live else None
    group = _Group(servers)
    try:
        write_members(repository, pipeline, version.number, [before] if before else ())
        group.load(names.members)
        write_ensemble(repository, pipeline, version.number)
        group.load([names.ensemble])
    except TandemError as error:
        if before is not None:
            _restore(version, before, group)
        event = Event(FAILED, before, version.number, f"{action}: {error.what}")
        version_history.record(repository, pipeline, event)
        raise
    seconds = time.monotonic() - began
    version_history.record(repository, pipeline, Event(action, before, version.number, why))
    write_members(repository, pipeline, version.number)
    with suppress(CheckError):  # the old version stays loaded beside the live one: it takes memory and answers nothing
        group.load(names.members)
    return TakeOver(before, version.number, seconds, tuple(s.name for s in group.reached), tuple(group.unreachable))


def _restore(version: Version, before: int, group: _Group) -> None:
    """The old version is live again, in the repository first: a server that starts now must find it."""
    repository, pipeline = version.repository, version.pipeline
    names = ModelNames.of(pipeline)
    write_members(repository, pipeline, before, [version.number])
    write_ensemble(repository, pipeline, before)
    with suppress(CheckError):
        group.load([names.ensemble])
    write_members(repository, pipeline, before)
    with suppress(CheckError):
        group.load(names.members)


class _Group:
    """All servers, each model in each at once. One that cannot be reached is left out from then on: it holds up nobody."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.reached = list(servers)
        self.unreachable: list[str] = []

    def load(self, models: Collection[str]) -> None:
        """CheckError of the first that refuses, after all have answered."""
        if not self.reached:
            return
        with ThreadPoolExecutor(len(self.reached) * len(models)) as pool:
            jobs = [(server, pool.submit(server.load, model)) for server in self.reached for model in models]
        refused: CheckError | None = None
        for server, job in jobs:
            try:
                job.result()
            except ServeError:
                if server in self.reached:
                    self.reached.remove(server)
                    self.unreachable.append(server.name)
            except CheckError as error:
                refused = refused or error
        if refused is not None:
            raise refused
