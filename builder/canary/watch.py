"""Looks at both versions of a canary, second by second, until a limit is broken or its time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from builder.canary.arm import Arm, read_arm
from builder.canary.comparison import BROKEN, Comparison, compare
from builder.errors import ServeError
from builder.spec.versions import Canary as Limits
from builder.telemetry.scrape import Scrape

PERIOD = 1.0  # seconds between two looks
MOST_FAILED_LOOKS = 10  # in a row, at servers that do not answer

PROMOTE, TAKE_BACK = "promote", "take back"


@dataclass(frozen=True)
class Look:
    """What was known at one moment, and what follows."""

    decision: str | None  # None: go on
    why: str
    seconds: float  # since the canary began
    stable: Arm
    tried: Arm
    comparisons: tuple[Comparison, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "decision": self.decision or "go on",
            "why": self.why,
            "seconds": round(self.seconds, 1),
            "stable": self.stable.to_json(),
            "tried": self.tried.to_json(),
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
        }


class Reader(Protocol):
    """The metrics of the servers of the live version, and of those of the tried one. ServeError when one does not answer."""

    def __call__(self) -> tuple[Sequence[Scrape], Sequence[Scrape]]: ...


@dataclass(frozen=True)
class Watch:
    """`still_live` says whether version `live` is live: another command may end the canary by making another one live."""

    pipeline: str
    live: int
    tried: int
    limits: Limits
    success: Comparison  # of the probes, which were asked before
    read: Reader
    still_live: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self, heard: Callable[[Look], None]) -> Look:
        """The look that decided; `heard` gets every one. ServeError when the servers do not answer at the start."""
        began, first = self.clock(), self._arms()
        now, missed = first, 0
        while True:
            try:
                now, missed = self._arms(), 0
            except ServeError:
                missed += 1
            stable, tried = (new.since(old) for new, old in zip(now, first, strict=True))
            look = self._look(self.clock() - began, stable, tried, missed)
            heard(look)
            if look.decision is not None:
                return look
            self.sleep(PERIOD)

    def _arms(self) -> tuple[Arm, Arm]:
        stable, tried = self.read()
        return read_arm(stable, self.pipeline, self.live), read_arm(tried, self.pipeline, self.tried)

    def _look(self, seconds: float, stable: Arm, tried: Arm, missed: int) -> Look:
        found = (*compare(stable, tried, self.limits), self.success)
        decision, why = self._decide(seconds, stable, tried, found, missed)
        return Look(decision, why, seconds, stable, tried, found)

    def _decide(self, seconds: float, stable: Arm, tried: Arm, found: Sequence[Comparison], missed: int) -> tuple[str | None, str]:
        if not self.still_live():
            return TAKE_BACK, f"version {self.live} is not live any more: another command made another version live"
        if missed > MOST_FAILED_LOOKS:
            return TAKE_BACK, "the servers do not answer"
        if broken := [str(comparison) for comparison in found if comparison.verdict == BROKEN]:
            return TAKE_BACK, "; ".join(broken)
        if seconds < self.limits.duration:
            return None, "no limit is broken"
        fewest = min(stable.requests, tried.requests)
        if fewest < self.limits.min_requests:
            return TAKE_BACK, f"one version had {fewest} requests in {seconds:.0f} s, fewer than min_requests {self.limits.min_requests}"
        return PROMOTE, "no limit is broken"
