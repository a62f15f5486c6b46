"""Drill of the kill switch: off and on again under live load, in effect under a second, without a failed request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from builder.drills.load import Load
from builder.drills.repository import copy_version
from builder.drills.scrape import Metrics
from builder.drills.timeline import Check, DrillResult, Say, Timeline
from builder.errors import ServeError
from builder.repository.flag_store import FlagStore
from builder.repository.flags import ALL
from builder.repository.versions import Version
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from builder.telemetry import catalogue

LIMIT = 1.0  # seconds from the operator's command to the last draft
TOKENS = 16  # of an answer: a request takes a fraction of a second, so that each flip meets many
QUIET = 1.0  # seconds without a counted draft that prove the switch; metrics are flushed four times a second


@dataclass(frozen=True)
class Size:
    flips: int
    requests: int
    streams: int

    @classmethod
    def of(cls, quick: bool) -> Size:
        return cls(flips=1, requests=40, streams=4) if quick else cls(flips=5, requests=1000, streams=8)


@dataclass(frozen=True)
class Stage:
    """Where the drill plays: an address, its metrics, and the flags that it follows."""

    url: str
    metrics: Metrics
    flags: FlagStore


def drill_kill_switch(
    version: Version, *, quick: bool = False, url: str | None = None, metrics_url: str | None = None, say: Say = lambda _: None
) -> DrillResult:
    """On a server of its own with a copy of `version` that always speculates; or on a running one, `url` its gRPC host:port and
    `metrics_url` its metrics host:port, whose flags are those of the version's repository: then users feel it too.

    RepositoryError or ServeError when it cannot be played at all; what does not hold is in the result.
    """
    size, timeline = Size.of(quick), Timeline(say)
    with _stage(version, url, metrics_url, timeline) as stage:
        parameters: dict[str, str | int | float | bool] = {"max_tokens": TOKENS, "ignore_eos": True}
        with Load(stage.url, version.pipeline, size.streams, parameters) as load:
            try:
                effects, late, back = _flip(stage, load, size, timeline)
                while len(load.asked) < size.requests and not load.failed:
                    time.sleep(0.1)
            finally:
                stage.flags.set({ALL: None}, "drill kill-switch is over")
        timeline.add(f"{len(load.asked)} requests, {len(load.failed)} failed")
    slowest = max((effect for effect in effects if effect is not None), default=None)
    in_time = bool(effects) and all(effect is not None and effect < LIMIT for effect in effects)
    checks = (
        Check("drafts stop in time", in_time, f"slowest {slowest or 0:.2f} s of {len(effects)} flips, limit {LIMIT:.0f} s"),
        Check("requests begun after it are plain", late == 0, f"{late} had drafts"),
        Check("drafts return", back == size.flips, f"{back} of {size.flips} times"),
        Check("no request fails", not load.failed, f"{len(load.failed)} of {len(load.asked)}"),
    )
    return DrillResult("kill-switch", version.pipeline, slowest, len(load.asked), len(load.failed), checks, tuple(timeline.entries))


def _flip(stage: Stage, load: Load, size: Size, timeline: Timeline) -> tuple[list[float | None], int, int]:
    """Seconds until the last draft of each flip, requests begun after that which had drafts all the same, and flips undone."""
    effects: list[float | None] = []
    late = back = 0
    metrics = stage.metrics
    if not _drafts_come(metrics):
        timeline.add("no drafts before the first flip: there is nothing to switch off")
        return effects, late, back
    timeline.add(f"{size.streams} streams, drafts are made")
    for flip in range(1, size.flips + 1):
        begun = time.monotonic()
        stage.flags.set({ALL: False}, "drill kill-switch")
        effect = _last_draft(metrics, begun)
        effects.append(effect)
        timeline.add(f"flip {flip}: all=off; " + ("drafts go on" if effect is None else f"last draft after {effect:.2f} s"))
        late += sum(asked.speculative for asked in load.since(begun + LIMIT))
        stage.flags.set({ALL: None}, "drill kill-switch")
        back += _drafts_come(metrics)
        timeline.add(f"flip {flip}: all=default; drafts are made again")
    return effects, late, back


def _last_draft(metrics: Metrics, begun: float) -> float | None:
    """Seconds from `begun` to the last growth of the counter of drafts; None when it grows on."""
    grown, last = begun, metrics.value(catalogue.DRAFTS)
    while time.monotonic() < begun + 5 * LIMIT:
        value, now = metrics.value(catalogue.DRAFTS), time.monotonic()
        if value != last:
            grown, last = now, value
        elif now - grown > QUIET:
            return grown - begun
        time.sleep(0.02)
    return None


def _drafts_come(metrics: Metrics) -> bool:
    before = metrics.value(catalogue.DRAFTS)
    return metrics.wait(lambda: metrics.value(catalogue.DRAFTS) > before, 20) is not None


@contextmanager
def _stage(version: Version, url: str | None, metrics_url: str | None, timeline: Timeline) -> Iterator[Stage]:
    if url is not None:
        host, port = _address(metrics_url or "")
        yield Stage(url, Metrics(host, port, version.pipeline), FlagStore(version.repository, version.pipeline))
        return
    with TemporaryDirectory(prefix="tandem-drill-") as folder:
        copied = copy_version(version, Path(folder) / "model_repository", {"control": {"adaptive": False}})
        timeline.add(f"starting a server with a copy of version {version.number}")
        with Triton(copied.repository, version.pipeline, free_ports()) as server:
            metrics = Metrics(server.host, server.ports["metrics"], version.pipeline)
            yield Stage(f"{server.host}:{server.ports['grpc']}", metrics, FlagStore(copied.repository, version.pipeline))


def _address(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if not parts.hostname or port is None:
        raise ServeError(f"{text!r} is no address", where="--metrics-url", mend="Give host:port of the server's metrics")
    return parts.hostname, port
