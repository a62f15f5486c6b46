"""Requests that end before their answers do, and why: cancelled ones, and those whose time is over."""

from __future__ import annotations

import heapq
from collections.abc import Container

from builder.runtime.request import Cancellation


class Endings:
    """By request id. The first reason stands. Not thread-safe."""

    def __init__(self) -> None:
        self._reasons: dict[str, Cancellation] = {}
        self._deadlines: list[tuple[float, str]] = []  # heap of (monotonic clock, request id); ended requests are skipped when due

    def cancel(self, request_id: str, reason: Cancellation) -> None:
        self._reasons.setdefault(request_id, reason)

    def set_deadline(self, request_id: str, at: float) -> None:
        heapq.heappush(self._deadlines, (at, request_id))

    def forget(self, request_id: str) -> None:
        """It has ended."""
        self._reasons.pop(request_id, None)

    def due(self, now: float, live: Container[str]) -> list[tuple[str, Cancellation]]:
        """Those of the `live` requests that have to end now."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            if request_id in live:
                self.cancel(request_id, Cancellation.DEADLINE)
        return list(self._reasons.items())
