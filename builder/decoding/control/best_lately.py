"""With what drafts paid best of late: the measure of what has changed when they no longer do."""

from __future__ import annotations

from dataclasses import dataclass

PERIOD = 5.0  # seconds: longer than an acceptance takes to fall, so that it is not measured against itself half fallen


@dataclass(frozen=True)
class Paid:
    """`gain` is the cost of plain decoding over that with drafts; `survival` as in the acceptance window."""

    gain: float
    survival: tuple[float, ...]
    sequences: int


class BestLately:
    """The best of the latest PERIOD at least, and of two at most."""

    def __init__(self, now: float, paid: Paid) -> None:
        self._began = now
        self._before = self._current = paid

    def add(self, now: float, paid: Paid) -> None:
        if now - self._began >= PERIOD:
            self._began, self._before, self._current = now, self._current, paid
        elif paid.gain >= self._current.gain:
            self._current = paid

    @property
    def paid(self) -> Paid:
        return max(self._before, self._current, key=lambda found: found.gain)
