"""What a drill saw, second by second, and whether each thing it checks held."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Say = Callable[[str], None]


@dataclass
class Timeline:
    """`say` hears of each entry as it is made."""

    say: Say = lambda _: None
    entries: list[tuple[float, str]] = field(default_factory=list)  # seconds from the start of the drill
    _began: float = field(default_factory=time.monotonic)

    def add(self, what: str) -> None:
        entry = round(time.monotonic() - self._began, 2), what
        self.entries.append(entry)
        self.say(f"{entry[0]:7.2f} s  {what}")


@dataclass(frozen=True)
class Check:
    name: str
    passed: bool
    found: str  # what was measured, with its unit and the limit


@dataclass(frozen=True)
class DrillResult:
    """`seconds_to_effect` is the slowest time from the operator's or the drill's act to its effect; None when there was none."""

    drill: str
    pipeline: str
    seconds_to_effect: float | None
    requests: int
    failed_requests: int
    checks: tuple[Check, ...]
    timeline: tuple[tuple[float, str], ...]
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "drill": self.drill,
            "pipeline": self.pipeline,
            "passed": self.passed,
            "seconds_to_effect": None if self.seconds_to_effect is None else round(self.seconds_to_effect, 3),
            "requests": self.requests,
            "failed_requests": self.failed_requests,
            "checks": [{"name": check.name, "passed": check.passed, "found": check.found} for check in self.checks],
            "measured": {name: round(value, 4) for name, value in self.measured.items()},
            "timeline": [{"at": at, "what": what} for at, what in self.timeline],
        }
