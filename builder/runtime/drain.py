"""How fast places become free: the base of every "try again in N s"."""

from __future__ import annotations

from collections import deque

WINDOW = 32  # ends looked back on
UNKNOWN = 1.0  # seconds, while too little has ended to tell


class Drain:
    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=WINDOW)

    def ended(self, now: float) -> None:
        self._ends.append(now)

    def seconds(self, places: int, now: float) -> float:
        """Until `places` more have ended, at the recent rate. A pause since the last end counts: a stall makes the hint grow."""
        if len(self._ends) < 2:
            return UNKNOWN * places
        return places * (now - self._ends[0]) / (len(self._ends) - 1)
