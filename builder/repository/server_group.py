"""All servers that run on a repository, told the same thing at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from builder.errors import CheckError, ServeError


class Server(Protocol):
    """A running Triton on this repository."""

    @property
    def name(self) -> str: ...

    def load(self, model: str) -> None:
        """Read the model's configuration again and load what it names. CheckError when a version cannot be loaded (what served
        goes on serving), ServeError when the server cannot be reached."""
        ...


class ServerGroup:
    """Each model in each server at once. One that cannot be reached is left out from then on: it holds up nobody."""

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
