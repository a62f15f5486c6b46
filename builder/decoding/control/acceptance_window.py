"""How far drafts are followed, of late: one chance per position, from counts that fade."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul

PRIOR = 0.7  # chance of the first position before anything was seen: worth trying
PRIOR_WEIGHT = 2.0  # rounds that the prior counts for
NEIGHBOUR_WEIGHT = 8.0  # rounds that the position before counts for, where a position has few of its own
RECENT = 16  # rounds of the short memory that notices a jump
JUMP = 3.0  # standard errors between the short memory and the long one that are no chance any more
LEAST_JUMP = 0.05  # and so much at least: a draft that was always right has no error to speak of


class AcceptanceWindow:
    """Counts of the latest rounds; each new round takes 1/memory of the weight of all earlier ones. When the latest rounds differ from
    them beyond chance (the text, the draft or the traffic is another now) the earlier ones lose most of their weight at once.

    A position counts as judged when it was on offer and every earlier one was kept. A proposer that had nothing to offer, or
    stopped early, has lost the position: what it would have won is not won.
    """

    def __init__(self, positions: int, memory: int) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._judged = [0.0] * positions
        self._kept = [0.0] * positions
        self._reachable = [0.0] * positions  # rounds on offer that had drafted all positions before
        self._reached = [0.0] * positions
        self._recent_judged = 0.0
        self._recent_kept = 0.0
        self.rounds = 0.0  # weight

    def add(self, offered: int, drafted: int, accepted: int) -> None:
        """A round that might draft `offered` tokens, drafted and accepted so many."""
        keep = self._keep
        for counts in (self._judged, self._kept, self._reachable, self._reached):
            counts[:] = [count * keep for count in counts]
        judged = min(offered, accepted + 1, len(self._judged))
        for place in range(judged):
            self._judged[place] += 1
            self._kept[place] += accepted > place
        for place in range(min(offered, drafted + 1, len(self._reached))):
            self._reachable[place] += 1
            self._reached[place] += drafted > place
        self._recent_judged += judged - self._recent_judged / RECENT
        self._recent_kept += min(accepted, judged) - self._recent_kept / RECENT
        self.rounds = self.rounds * keep + 1
        if self.rounds > 2 * RECENT and self._has_jumped():
            self.fade(RECENT / 2)

    def fade(self, rounds: float) -> None:
        """Let what was seen so far weigh as much as `rounds` rounds at most: a probe asks about now."""
        share = min(1.0, rounds / self.rounds) if self.rounds else 1.0
        for counts in (self._judged, self._kept, self._reachable, self._reached):
            counts[:] = [count * share for count in counts]
        self.rounds *= share

    def _has_jumped(self) -> bool:
        share, recent = self.kept / self.judged, self._recent_kept / self._recent_judged
        error = math.sqrt(share * (1 - share) / self._recent_judged)
        return abs(recent - share) > max(JUMP * error, LEAST_JUMP)

    @property
    def judged(self) -> float:
        return sum(self._judged)

    @property
    def kept(self) -> float:
        return sum(self._kept)

    def reach(self) -> tuple[float, ...]:
        """[i]: share of the rounds that draft position i when it is on offer: a draft may end early, a proposer may have none."""
        return _products(_leaning(self._reachable, self._reached, 1.0))

    def chances(self) -> tuple[float, ...]:
        """[i]: chance that position i is kept once all before it were."""
        return tuple(_leaning(self._judged, self._kept, PRIOR))

    def survival(self) -> tuple[float, ...]:
        """[i]: chance that position i and all before it are kept. A round of K wins 1 + sum(survival[:K]) tokens."""
        return _products(self.chances())


def _leaning(tried: Sequence[float], done: Sequence[float], prior: float) -> list[float]:
    """Shares done of tried by position; deep positions, which have few counts, lean on the one before them."""
    shares: list[float] = []
    believed, weight = prior, PRIOR_WEIGHT
    for of, count in zip(tried, done, strict=True):
        believed = (count + weight * believed) / (of + weight)
        shares.append(believed)
        weight = NEIGHBOUR_WEIGHT
    return shares


def _products(shares: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate(shares, mul))
