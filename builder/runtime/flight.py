"""What is in flight to the two models at the moment, and what each call took: where no step is shared, this is what a pass costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Kind = Literal["target", "draft"]


@dataclass
class Flight:
    """One call. `together` are the rows of all calls of its kind that flew beside it, at its beginning or its end, whichever were more:
    the backend runs what is in flight in one pass."""

    rows: int
    together: int = 0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """Seconds that are this call's own, when those in flight together pay for the pass by rows."""
        return self.seconds * self.rows / max(1, self.together)


class InFlight:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._rows: dict[Kind, int] = {"target": 0, "draft": 0}

    @contextmanager
    def fly(self, kind: Kind, rows: int) -> Iterator[Flight]:
        self._rows[kind] += rows
        flight, began = Flight(rows, self._rows[kind]), time.monotonic()
        try:
            yield flight
        finally:
            flight.seconds = time.monotonic() - began
            flight.together = max(flight.together, self._rows[kind])
            self._rows[kind] -= rows
