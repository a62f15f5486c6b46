"""Expected seconds per token of the batch for given draft lengths (M3 over a ragged batch).

A round of K drafts costs K draft steps and one verify pass, and wins 1 + S_1 + ... + S_K tokens, S_i the chance that the first i
drafted tokens are kept: Leviathan et al. 2023, equation 1, with a chance of its own for each position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class Costs(Protocol):
    """Seconds of a pass by its rows, as measured (runtime.step_costs.StepCosts)."""

    def seconds(self, kind: Literal["target", "draft"], rows: int) -> float | None: ...


@dataclass(frozen=True)
class Share:
    """The sequences of one group in the batch: all draft `draft_tokens`, of which `fill` come."""

    sequences: int
    draft_tokens: int
    survival: tuple[float, ...]
    fill: float = 1.0

    @property
    def tokens(self) -> float:
        """Expected tokens of a round, over all its sequences."""
        return self.sequences * (1.0 + sum(self.survival[: self.draft_tokens]))


def seconds_per_token(shares: Sequence[Share], plain_rows: int, costs: Costs) -> float | None:
    """Of one step with `plain_rows` rows beside the shares'. None while no target pass was measured.

    A draft step that was never measured counts as free, so that it is tried, and then it is known.
    """
    rows = plain_rows + sum(share.sequences for share in shares) + round(sum(s.sequences * s.draft_tokens * s.fill for s in shares))
    target = costs.seconds("target", rows)
    if target is None:
        return None
    seconds = target
    for step in range(max((share.draft_tokens for share in shares), default=0)):
        seconds += costs.seconds("draft", sum(share.sequences for share in shares if share.draft_tokens > step)) or 0.0
    return seconds / (plain_rows + sum(share.tokens for share in shares))
