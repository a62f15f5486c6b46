"""What the control of drafts has done since the last look goes to metrics and event log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builder.repository.event_log import EventLog
from builder.runtime.speculation import ControlReport
from builder.telemetry.triton_sink import TritonSink


class ControlUpkeep:
    """Called by the upkeep thread. A repository that cannot be written is said once; serving goes on."""

    def __init__(self, events: EventLog, sink: TritonSink, complain: Callable[[str], Any]) -> None:
        self._events = events
        self._sink = sink
        self._complain: Callable[[str], Any] | None = complain

    def event(self, name: str, **details: Any) -> None:
        try:
            self._events.append(name, **details)
        except OSError as error:
            if self._complain is not None:
                self._complain(f"the event log cannot be written ({error}); events are lost")
                self._complain = None

    def take(self, report: ControlReport) -> None:
        self._sink.control_read(report)
        for found in report.transitions:
            details = {"scope": found.scope, "from": found.old, "to": found.new, "reason": found.reason}
            self.event("transition", **details, draft_tokens=found.draft_tokens, acceptance=found.acceptance, rounds=found.rounds)
