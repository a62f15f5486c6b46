"""Early exit where the draft model is the target's own first layers: tokens it is sure of leave, and the target never judges them."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from builder.decoding.exits.confidence import probabilities_of
from builder.decoding.exits.rule import ExitLimits


@dataclass(frozen=True)
class PairExit:
    """A drafted token whose probability is at least `threshold` leaves after `layer` of `depth` layers.

    `ends` are the end-of-sequence tokens. They never leave: the pass that one would save is the answer's last, and a wrong one costs all
    of the answer behind it. `temperature` is what the threshold was calibrated at.
    """

    layer: int
    depth: int
    threshold: float
    limits: ExitLimits
    ends: frozenset[int] = frozenset()
    temperature: float = 0.0

    def leaving(self, drafted: Items[int], logits: NDArray[Any], answered: int) -> int:
        """How many of `drafted`, from the first on, leave behind `answered` tokens of the answer. logits [drafted, V] are the draft's."""
        if not drafted or answered < self.limits.protected_tokens:
            return 0
        sure = probabilities_of(drafted, logits) >= self.threshold
        most = min(len(drafted), self.limits.max_pending)
        return next((n for n in range(most) if not sure[n] or drafted[n] in self.ends), most)
