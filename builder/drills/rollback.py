"""Drill of the rollback: under live load a bad version goes live, is detected, and is taken back; three kinds of bad."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from builder.drills.bad_versions import FAILS_TO_LOAD, KINDS, publish_bad
from builder.drills.load import PROMPTS, Asked, Load
from builder.drills.repository import copy_version
from builder.drills.timeline import Check, DrillResult, Say, Timeline
from builder.errors import CheckError
from builder.repository.live import live_version
from builder.repository.rollback import roll_back
from builder.repository.versions import Version
from builder.serve import client
from builder.serve.control import ModelControl
from builder.serve.ports import free_ports
from builder.serve.servers import running_servers
from builder.serve.triton import Triton

TOKENS = 16  # of an answer: a request takes a fraction of a second, so that each change meets many
SLOWER = 2.0  # times the usual time of an answer: that is called slow
PROBES = PROMPTS[:3]  # whose greedy answers are known; the same weights must give the same ones
DETECT_SECONDS = 60.0  # after that a bad version counts as not detected


@dataclass(frozen=True)
class Size:
    requests: int
    streams: int
    limit: float  # seconds from the decision to the effect; a quick drill may run on a busy machine

    @classmethod
    def of(cls, quick: bool) -> Size:
        return cls(requests=40, streams=4, limit=30.0) if quick else cls(requests=1000, streams=8, limit=5.0)


def drill_rollback(version: Version, *, quick: bool = False, say: Say = lambda _: None) -> DrillResult:
    """On a server of its own, with a copy of `version` as the good one.

    RepositoryError or ServeError when it cannot be played at all; what does not hold is in the result.
    """
    size, timeline = Size.of(quick), Timeline(say)
    with TemporaryDirectory(prefix="tandem-drill-") as name:
        good = copy_version(version, Path(name) / "model_repository", {})
        timeline.add(f"starting a server with a copy of version {version.number}")
        with Triton(good.repository, good.pipeline, free_ports()) as server:
            url = f"{server.host}:{server.ports['grpc']}"
            with Load(url, good.pipeline, size.streams, {"max_tokens": TOKENS, "ignore_eos": True}) as load:
                play = _Play(good, url, load, timeline, size, Path(name))
                play.run()
                while len(load.asked) < size.requests and not load.failed:
                    time.sleep(0.1)
        failed = load.failed
        timeline.add(f"{len(load.asked)} requests, {len(failed)} failed")
        play.checks.append(Check("no request fails", not failed, f"{len(failed)} of {len(load.asked)}"))
    return DrillResult(
        "rollback",
        good.pipeline,
        max(play.effects, default=None),
        len(load.asked),
        len(failed),
        tuple(play.checks),
        tuple(timeline.entries),
        play.measured,
    )


class _Play:
    """One bad version after another, each on the good one that was live before."""

    def __init__(self, good: Version, url: str, load: Load, timeline: Timeline, size: Size, folder: Path) -> None:
        self.checks: list[Check] = []
        self.effects: list[float] = []  # seconds from the decision to take back until no request gets the bad version any more
        self.measured: dict[str, float] = {}
        self._good, self._url, self._load, self._timeline, self._size, self._folder = good, url, load, timeline, size, folder

    def run(self) -> None:
        answers = self._probe()
        while len(self._load.asked) < 2 * self._size.streams and not self._load.failed:
            time.sleep(0.05)
        usual = median(_seconds(asked) for asked in list(self._load.asked) or [Asked(0, 0, 0, 0, {})])
        self._timeline.add(f"{self._size.streams} streams, an answer takes {usual:.2f} s")
        for kind in KINDS:
            if self._load.failed:
                return
            if kind == FAILS_TO_LOAD:
                self._refused(kind)
            else:
                self._taken_back(kind, usual, answers)

    def _refused(self, kind: str) -> None:
        begun = time.monotonic()
        self._timeline.add(f"{kind}: publishing")
        try:
            publish_bad(self._good, kind, self._folder, self._servers())
        except CheckError:
            self._timeline.add(f"{kind}: the server refused it after {time.monotonic() - begun:.1f} s")
        self._is_live(kind)
        self._answers_again(kind, time.monotonic())

    def _taken_back(self, kind: str, usual: float, answers: list[str]) -> None:
        self._timeline.add(f"{kind}: publishing past the gate")
        bad = publish_bad(self._good, kind, self._folder, self._servers())
        live, fault = time.monotonic(), None
        self._timeline.add(f"{kind}: version {bad.number} is live")
        while fault is None and time.monotonic() < live + DETECT_SECONDS:
            fault = self._fault(bad, usual, answers, live)
        decided = time.monotonic()
        self.measured[f"seconds_to_detect: {kind}"] = decided - live
        self.checks.append(Check(f"{kind}: detected", fault is not None, fault or f"not in {DETECT_SECONDS:.0f} s"))
        self._timeline.add(f"{kind}: {fault or 'not detected'}; decision: roll back")
        done = roll_back(self._good.repository, self._good.pipeline, None, self._servers(), f"drill: {fault}")
        self._timeline.add(f"{kind}: version {done.after} is live again after {done.seconds:.2f} s")
        self._is_live(kind)
        self._answers_again(kind, time.monotonic())
        effect = max([done.seconds, *(asked.begun - decided for asked in list(self._load.asked) if _version(asked) == bad.number)])
        self.effects.append(effect)
        self.checks.append(
            Check(f"{kind}: in effect in time", effect < self._size.limit, f"{effect:.2f} s, limit {self._size.limit:.0f} s")
        )

    def _fault(self, bad: Version, usual: float, answers: list[str], since: float) -> str | None:
        """What an operator's watch would see: answers that became slow, or known answers that became others."""
        found = [_seconds(asked) for asked in self._load.since(since) if _version(asked) == bad.number]
        if len(found) >= self._size.streams and median(found) > SLOWER * usual:
            return f"an answer takes {median(found):.2f} s instead of {usual:.2f}"
        different = sum(now != before for now, before in zip(self._probe(), answers, strict=True))
        return f"{different} of {len(PROBES)} known answers are others" if different else None

    def _probe(self) -> list[str]:
        parameters: dict[str, str | int | float | bool] = {"max_tokens": TOKENS, "ignore_eos": True}
        asked = (client.generate(self._url, self._good.pipeline, prompt=prompt, parameters=parameters) for prompt in PROBES)
        return ["".join(chunk.text for chunk in chunks) for chunks in asked]

    def _is_live(self, kind: str) -> None:
        live = live_version(self._good.repository, self._good.pipeline)
        number = live.number if live else None
        self.checks.append(Check(f"{kind}: the good version is live", number == self._good.number, f"version {number}"))

    def _answers_again(self, kind: str, since: float) -> None:
        """Requests that begin from now on get the good version."""
        while len(self._load.since(since)) < self._size.streams and not self._load.failed:
            time.sleep(0.05)
        versions = {_version(asked) for asked in self._load.since(since)}
        others = versions - {self._good.number}
        self.checks.append(Check(f"{kind}: only the good version answers", not others, f"versions {sorted(map(str, versions))}"))

    def _servers(self) -> list[ModelControl]:
        return running_servers(self._good.repository, self._good.pipeline)


def _seconds(asked: Asked) -> float:
    return asked.ended - asked.begun


def _version(asked: Asked) -> int | None:
    number = asked.stats.get("version")
    return int(number) if number is not None else None
