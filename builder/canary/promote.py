"""`builder promote`: a published version goes live, at once or after it was tried on a share of the requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from builder.canary.arm import Arm
from builder.canary.comparison import BROKEN
from builder.canary.probes import Probes
from builder.canary.watch import PROMOTE, TAKE_BACK, Look, Watch
from builder.errors import CheckError, RepositoryError, ServeError
from builder.quality.cases import Case
from builder.repository.candidate_view import make_view, remove_view
from builder.repository.event_log import EventLog
from builder.repository.go_live import TakeOver, go_live
from builder.repository.live import live_version, recover
from builder.repository.lock import CANARY as WATCHED
from builder.repository.lock import locked
from builder.repository.models.folder import read_spec, read_tokenizer
from builder.repository.rollback import LOCK_WAIT, require_unchanged
from builder.repository.version_history import ABORT, CANARY, FAILED, Event, record
from builder.repository.version_history import PROMOTE as PROMOTED
from builder.repository.versions import Version
from builder.serve.control import ModelControl
from builder.serve.front_control import FrontControl
from builder.serve.ports import require_free
from builder.serve.triton import Triton
from builder.spec.versions import Canary as Limits
from builder.telemetry.scrape import scrape

SETTLE_SECONDS = 1.0  # until metrics have what was answered: they are flushed a few times a second
SEEN_SECONDS = 30.0  # most until the front has seen that the candidate answers
ENDING_SECONDS = 30.0  # most that the server of a killed canary takes to end
DRAIN_SECONDS = 60.0  # most that the candidate's requests are waited for
LOGGED_EVERY = 10  # looks; the first and the last always
POLL_SECONDS = 0.1

Heard = Callable[[Look], None]


@dataclass(frozen=True)
class Promotion:
    """`live` is the version that is live from then on; `look` has the numbers that the decision was made of."""

    pipeline: str
    tried: int
    live: int
    look: Look

    @property
    def promoted(self) -> bool:
        return self.look.decision == PROMOTE

    def to_json(self) -> dict[str, Any]:
        promoted = {"pipeline": self.pipeline, "version": self.tried, "promoted": self.promoted, "live": self.live}
        return promoted | self.look.to_json()


def promote_at_once(version: Version, servers: Sequence[ModelControl], why: str = "") -> TakeOver:
    """RepositoryError while a canary runs; CheckError when its files do not match its manifest or a server cannot load it."""
    repository, pipeline = version.repository, version.pipeline
    with locked(repository, pipeline, WATCHED), locked(repository, pipeline, wait=LOCK_WAIT):
        recover(repository, pipeline)
        require_unchanged(version)
        return go_live(version, servers, action=PROMOTED, why=why)


@dataclass(frozen=True)
class CanaryRun:
    """Version `version` is tried on `limits.percent` of the requests that come through `front`, beside the live one in `servers`."""

    version: Version
    limits: Limits
    cases: Sequence[Case]
    servers: Sequence[ModelControl]
    front: FrontControl
    heard: Heard = lambda _: None
    log: TextIO | None = None  # of the candidate's server

    def run(self) -> Promotion:
        """Promote it or take it back. Whatever ends this, a signal included, takes it back. After a SIGKILL the candidate's server ends,
        the front sends everything to the live version, and the next canary removes what is left.

        RepositoryError: it is live already, nothing is live, no server runs, or another canary runs. CheckError: its files do not match
        its manifest, or it cannot be loaded. ServeError: the servers' metrics or the front cannot be reached.
        """
        repository, pipeline = self.version.repository, self.version.pipeline
        with locked(repository, pipeline, WATCHED):
            with locked(repository, pipeline, wait=LOCK_WAIT):
                live = self._other_live()
                require_unchanged(self.version)
                self.front.set_share(0)  # a canary that was killed may have left it
                view = make_view(self.version)
            try:
                with self._candidate(view, live):
                    return self._try(live)
            finally:
                remove_view(repository, pipeline)

    def _other_live(self) -> int:
        live = recover(self.version.repository, self.version.pipeline)
        if live is None or live.number == self.version.number:
            what = "nothing is live to compare it with" if live is None else f"version {live.number} is live already"
            raise RepositoryError(what, where=str(self.version.repository), mend="Publish another with `builder build --no-promote`")
        if not self.servers:
            what = "no server runs on this repository: nobody would ask the version"
            raise RepositoryError(what, where=str(self.version.repository), mend="Start `builder serve`, or leave out --canary")
        return live.number

    @contextmanager
    def _candidate(self, view: Path, live: int) -> Iterator[None]:
        """A server of its own, ready inside, gone outside."""
        server = Triton(view, self.version.pipeline, self.front.candidate, log=self.log)
        _wait_until_free(self.front.candidate)
        try:
            server.start()
        except ServeError as error:
            self._record(Event(FAILED, live, self.version.number, f"{CANARY}: {error.what.splitlines()[0]}"))
            raise CheckError(f"version {self.version.number} cannot be tried: {error.what}", where=error.where, mend=error.mend) from error
        try:
            yield
        finally:
            server.stop()

    def _try(self, live: int) -> Promotion:
        number, look = self.version.number, None
        self._record(Event(CANARY, live, number, f"is tried on {self.limits.percent} % of the requests"))
        try:
            look = self._decide(live)
            if look.decision == PROMOTE:
                live = self._go_live(live, look)
        finally:
            why = "interrupted" if look is None else "it could not go live" if look.decision == PROMOTE else look.why
            with suppress(ServeError):  # a front that is gone sends nobody
                self.front.set_share(0)
            if live != number:
                self._record(Event(ABORT, number, live, why, look.to_json() if look else {}))
            self._drain()
        return Promotion(self.version.pipeline, number, live, look)

    def _decide(self, live: int) -> Look:
        """First the suites' prompts, of which users feel nothing; then the split."""
        spec, chats = read_spec(self.version.decode_folder), read_tokenizer(self.version.decode_folder).chats
        urls = (f"{self.servers[0].host}:{self.servers[0].grpc_port}", f"127.0.0.1:{self.front.candidate['grpc']}")
        longest = min(max(1, spec.engine.max_seq_len // 2), spec.longest_answer)
        success = Probes(self.version.pipeline, urls, self.cases, chats, longest).compare(self.limits.max_success_drop)
        if success.verdict == BROKEN:
            return self._hear(Look(TAKE_BACK, str(success), 0.0, Arm(), Arm(), (success,)))
        self._wait_until_seen()
        time.sleep(SETTLE_SECONDS)
        self.front.set_share(self.limits.percent)
        stable = [f"http://{server.host}:{server.metrics_port}/metrics" for server in self.servers]
        tried = f"http://127.0.0.1:{self.front.candidate['metrics']}/metrics"
        watch = Watch(
            self.version.pipeline,
            live,
            self.version.number,
            self.limits,
            success,
            lambda: ([scrape(url) for url in stable], [scrape(tried)]),
            lambda: _is_live(self.version, live),
        )
        return watch.run(self._listener())

    def _wait_until_seen(self) -> None:
        deadline = time.monotonic() + SEEN_SECONDS
        while not self.front.sees_candidate():
            if time.monotonic() > deadline:
                what = "the front does not see the candidate's server"
                raise ServeError(what, where=self.front.socket, mend="Start `builder front` again")
            time.sleep(POLL_SECONDS)

    def _go_live(self, before: int, look: Look) -> int:
        """The live version's number: another command may have been faster."""
        repository, pipeline = self.version.repository, self.version.pipeline
        with locked(repository, pipeline, wait=LOCK_WAIT):
            live = recover(repository, pipeline)
            if live is not None and live.number != before:
                return live.number
            return go_live(self.version, self.servers, action=PROMOTED, why=look.why, measured=look.to_json()).after

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        with suppress(ServeError):
            while self.front.candidate_requests() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)

    def _record(self, event: Event) -> None:
        with locked(self.version.repository, self.version.pipeline, wait=LOCK_WAIT):
            record(self.version.repository, self.version.pipeline, event)

    def _listener(self) -> Heard:
        looks = 0

        def hear(look: Look) -> None:
            nonlocal looks
            if looks % LOGGED_EVERY == 0 or look.decision is not None:
                self._hear(look)
            else:
                self.heard(look)
            looks += 1

        return hear

    def _hear(self, look: Look) -> Look:
        EventLog(self.version.repository, self.version.pipeline, str(self.version.number)).append(CANARY, **look.to_json())
        self.heard(look)
        return look


def _wait_until_free(ports: Mapping[str, int]) -> None:
    """The server of a canary that was killed ends by itself, but answers what it has begun first."""
    deadline = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < deadline:
        try:
            return require_free("127.0.0.1", ports)
        except ServeError:
            time.sleep(POLL_SECONDS)


def _is_live(version: Version, number: int) -> bool:
    live = live_version(version.repository, version.pipeline)
    return live is not None and live.number == number
