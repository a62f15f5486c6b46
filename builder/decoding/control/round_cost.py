"""Expected seconds per token of the batch for given draft lengths (M3 over a ragged batch).

A round of K drafts costs K draft steps and one verify pass, and wins 1 + S_1 + ... + S_K tokens, S_i the chance that the first i
drafted tokens are kept: Leviathan et al. 2023, equation 1, with a chance of its own for each position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class Costs(Protocol):
    """Seconds of a target pass by its rows, and of a draft by its sequences and steps, as measured (runtime.step_costs.StepCosts)."""

    def seconds(self, kind: Literal["target"], rows: int) -> float | None: ...

    def draft_seconds(self, sequences: int, steps: int) -> float | None: ...


@dataclass(frozen=True)
class Share:
    """The sequences of one group in the batch: all may draft `draft_tokens`. reach [i] of them come to position i (all where it is
    shorter): drafts end early, proposers may have none. Drafts that are `copied` from the text take no step."""

    sequences: int
    draft_tokens: int
    survival: tuple[float, ...]
    reach: tuple[float, ...] = ()
    copied: bool = False

    @property
    def tokens(self) -> float:
        """Expected tokens of a round, over all its sequences."""
        return self.sequences * (1.0 + sum(self.survival[: self.draft_tokens]))

    @property
    def rows(self) -> float:
        """Expected rows of the verify pass."""
        return self.sequences * (1.0 + sum(map(self.reaching, range(self.draft_tokens))))

    def reaching(self, position: int) -> float:
        """Chance that one of its sequences drafts this position."""
        if position >= self.draft_tokens:
            return 0.0
        return self.reach[position] if position < len(self.reach) else 1.0


def seconds_per_token(shares: Sequence[Share], plain_rows: int, costs: Costs) -> float | None:
    """Of one step with `plain_rows` rows beside the shares'. None while no target pass was measured.

    A draft that was never measured counts as free, so that it is tried, and then it is known.
    """
    target = costs.seconds("target", round(plain_rows + sum(share.rows for share in shares)))
    if target is None:
        return None
    seconds, drafted = target, [share for share in shares if not share.copied]
    for step in range(max((share.draft_tokens for share in drafted), default=0)):
        going = sum(share.sequences * share.reaching(step) for share in drafted)
        anybody = 1.0 - math.prod((1.0 - share.reaching(step)) ** share.sequences for share in drafted)
        if anybody:
            rows = max(1, round(going / anybody))
            more = (costs.draft_seconds(rows, step + 1) or 0.0) - (costs.draft_seconds(rows, step) or 0.0)
            seconds += anybody * max(0.0, more)
    return seconds / (plain_rows + sum(share.tokens for share in shares))
