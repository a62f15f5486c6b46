"""What a pass costs at so many rows, measured by the loop itself while it serves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# target: a pass of plain rows and verify groups. mixed: one with prompts in it, whose rows but the last of a prompt skip the head.
Kind = Literal["target", "mixed"]

MEMORY = 16  # passes an average looks back over; fewer at the start, so that the first ones count in full
EXACT = 16  # up to so many rows each count has an average of its own: one tile of sixteen rows ends there


@dataclass
class _Mean:
    """Running averages of the passes of one bucket."""

    rows: float = 0.0
    seconds: float = 0.0
    passes: int = 0

    def add(self, rows: int, seconds: float) -> None:
        self.passes = min(self.passes + 1, MEMORY)
        self.rows += (rows - self.rows) / self.passes
        self.seconds += (seconds - self.seconds) / self.passes


class StepCosts:
    """Moving averages of the seconds of a pass by its number of rows, each kind apart.

    `record` is called by the thread that steps, about a microsecond a pass; `seconds` may be asked from the same thread at any time.
    """

    def __init__(self) -> None:
        self._means: dict[Kind, dict[int, _Mean]] = {"target": {}, "mixed": {}}
        self._drafts: dict[int, dict[int, _Mean]] = {}  # by steps

    def record(self, kind: Kind, rows: int, seconds: float) -> None:
        """A pass of `rows` rows took so long."""
        _add(self._means[kind], rows, seconds)

    def record_draft(self, sequences: int, steps: int, seconds: float) -> None:
        """The drafts of so many sequences, of `steps` steps, took so long together. Other numbers of steps, which are not in use, become
        slower or faster with these."""
        mine, place = self._drafts.setdefault(steps, {}), bucket(sequences)
        before = mine[place].seconds if place in mine and mine[place].passes >= MEMORY // 2 else None
        _add(mine, sequences, seconds)
        if before:
            for means in self._drafts.values():
                if means is not mine and place in means:
                    means[place].seconds *= mine[place].seconds / before

    def seconds(self, kind: Kind, rows: int) -> float | None:
        """Expected seconds of a pass of `rows` rows; None before the first such pass was recorded.

        Linear between the two nearest measured counts. Outside them: below, as the least one measured (weights are read whatever the
        rows); above, on the line through the two largest, never falling.
        """
        return _along(self._means[kind], rows)

    def draft_seconds(self, sequences: int, steps: int) -> float | None:
        """Expected seconds of drafting `steps` tokens for so many sequences; None before the first draft.

        Each number of steps has averages of its own: the first step costs more than those after it, which find the draft's weights in
        the caches. A number never seen is as the nearest one, by the step.
        """
        if not steps or not self._drafts:
            return None if steps else 0.0
        nearest = min(self._drafts, key=lambda seen: (abs(seen - steps), -seen))
        seconds = _along(self._drafts[nearest], sequences)
        return None if seconds is None else seconds * steps / nearest

    def span(self, kind: Kind) -> tuple[float, float] | None:
        """The fewest and the most rows of a pass so far; None before the first."""
        rows = [mean.rows for mean in self._means[kind].values()]
        return (min(rows), max(rows)) if rows else None

    def rows_within(self, kind: Kind, seconds: float, most: int) -> int:
        """The most rows, up to `most`, whose pass is expected to take no longer: at least 1, and `most` when none was measured."""
        few, many = 1, most + 1
        while many - few > 1:
            middle = (few + many) // 2
            expected = self.seconds(kind, middle)
            few, many = (middle, many) if expected is None or expected <= seconds else (few, middle)
        return few


def _add(means: dict[int, _Mean], rows: int, seconds: float) -> None:
    place = bucket(rows)
    if place not in means:
        means[place] = _Mean()
    means[place].add(rows, seconds)


def _along(means: Mapping[int, _Mean], rows: int) -> float | None:
    points = sorted((mean.rows, mean.seconds) for mean in means.values())
    if not points:
        return None
    place = bisect_left(points, (rows, 0.0))
    if place == 0 or len(points) == 1:
        return points[0][1]
    (r0, s0), (r1, s1) = points[place - 1 : place + 1] if place < len(points) else points[-2:]
    along = s0 + (s1 - s0) * (rows - r0) / (r1 - r0)
    return along if rows <= r1 else max(along, s1)


def bucket(rows: int) -> int:
    """The number that rows share an average under: their own up to EXACT, then one for each eighth part of a doubling."""
    if rows <= EXACT:
        return rows
    step = 1 << (rows.bit_length() - 4)
    return -(-rows // step) * step
