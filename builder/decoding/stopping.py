"""When a draft ends before its limit: as soon as its next token is kept too rarely to be worth a draft step.

The rule looks at the draft's distribution q, before a token is drawn from it, and decides whether that token is the last one. A drawn
token always stays: to drop one for what it is would leave the others drawn too often, and the target's distribution would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BINS = 16  # of confidence, equally wide


def bin_of(confidence: float) -> int:
    """Of a probability 0..1."""
    return min(int(confidence * BINS), BINS - 1)


@dataclass(frozen=True)
class StopRule:
    """chances [BINS]: how often a token is kept whose draft is so confident (probability of q's most likely token), once all before it
    were. A draft goes on while the product over its tokens is `least` or more."""

    chances: tuple[float, ...]
    least: float

    def ends(self, confidences: Sequence[float]) -> bool:
        """Whether the latest of these tokens of a draft is its last one."""
        hope = 1.0
        for confidence in confidences:
            hope *= self.chances[bin_of(confidence)]
        return hope < self.least
