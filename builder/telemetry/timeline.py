"""When the decode loop worked on a request and what came of it, in bounded room: at most MOST_PHASES entries of a kind a request.

A span a round would be hundreds for a long answer. So the first rounds have one each, and all later ones share the last.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from operator import add

from builder.runtime.steps import Prefill, Round, Step
from builder.telemetry import span_names as names

MOST_PHASES = 16


@dataclass
class Phase:
    """One or more stretches of the same work for one answer. Seconds on the monotonic clock; `busy` is without the time between."""

    name: str
    sample: int
    start: float
    end: float
    busy: float
    count: int = 1
    values: dict[str, int] = field(default_factory=dict)  # attributes

    def merge(self, later: Phase) -> None:
        self.end, self.busy, self.count = later.end, self.busy + later.busy, self.count + later.count
        for key, value in later.values.items():
            together = {names.DRAFT_LENGTH: max, names.EXIT_LAYER: min}.get(key, add)
            self.values[key] = together(self.values[key], value) if key in self.values else value


class Timeline:
    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self._of: dict[tuple[str, int], list[Phase]] = defaultdict(list)

    @property
    def first_pass(self) -> float | None:
        """When the loop first worked on it; None while it waits."""
        return self.phases[0].start if self.phases else None

    def add_prefill(self, step: Step, prefill: Prefill) -> None:
        self._add(names.PREFILL, prefill.sample, step.drafted, step.ended, {names.TOKENS: prefill.tokens})

    def add_round(self, step: Step, found: Round) -> None:
        """The draft, where there was one, and the pass that decided over it."""
        drafted = {names.DRAFT_LENGTH: found.limit, names.DRAFTED: found.drafted}
        if found.limit:
            self._add(names.DRAFT, found.sample, step.began, step.drafted, drafted)
        decided = drafted | {names.ACCEPTED: found.accepted, names.TOKENS: found.tokens}
        if found.left_at is not None:
            decided[names.EXIT_LAYER] = found.left_at
        self._add(names.VERIFY, found.sample, step.drafted, step.ended, decided)

    def _add(self, name: str, sample: int, start: float, end: float, values: dict[str, int]) -> None:
        phase, earlier = Phase(name, sample, start, end, end - start, values=dict(values)), self._of[name, sample]
        if len(earlier) >= MOST_PHASES:
            earlier[-1].merge(phase)
            return
        earlier.append(phase)
        self.phases.append(phase)


class Timelines:
    """The StepObserver that keeps a timeline for each request that was `open`ed. `open` and `close` may come from any thread."""

    def __init__(self) -> None:
        self._live: dict[str, Timeline] = {}

    @property
    def active(self) -> bool:
        return bool(self._live)

    def open(self, request_id: str) -> None:
        self._live[request_id] = Timeline()

    def close(self, request_id: str) -> Timeline:
        """Its timeline, complete once its last output has left the engine."""
        return self._live.pop(request_id)

    def step_done(self, step: Step) -> None:
        for prefill in step.prefills:
            if (timeline := self._live.get(prefill.request_id)) is not None:
                timeline.add_prefill(step, prefill)
        for found in step.rounds:
            if (timeline := self._live.get(found.request_id)) is not None:
                timeline.add_round(step, found)
