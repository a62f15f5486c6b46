"""Tokens of a draft that leave unverified: the rounds of serving, played over answers at whose every token the draft was asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from builder.decoding.exits.rule import FULL, Answers, ExitLimits, starts


@dataclass(frozen=True)
class Rounds:
    """`chosen` [tokens]: 0 where a token left, else FULL. The target ran `passes` times, prompts included, and the draft `steps`."""

    chosen: NDArray[np.int64]
    passes: int
    steps: int

    def speedup(self, draft_cost: float) -> float:
        """Tokens in the time that plain decoding has one in, a draft step taking `draft_cost` of a pass."""
        return len(self.chosen) / (self.passes + self.steps * draft_cost)


def leave_in_rounds(answers: Answers, threshold: float, limits: ExitLimits, draft_tokens: int) -> Rounds:
    """Each round drafts up to `draft_tokens`; the first of them leave while they are sure, the target judges the rest and gives one more.

    `answers` have one column, the draft's. Behind a token that differs it is taken to say what it said on the answer itself.
    """
    sure, right = answers.confidence[:, 0] >= threshold, answers.right[:, 0]
    chosen = np.full(len(sure), FULL, dtype=np.int64)
    passes = steps = 0
    for begin, length in zip(starts(answers.lengths).tolist(), answers.lengths, strict=True):
        at, passes = 1, passes + 1  # the prompt's pass gives the first token
        while at < length:
            drafted = min(draft_tokens, length - at - 1)
            most = min(drafted, limits.max_pending) if at >= limits.protected_tokens else 0
            left = _run(sure[begin + at : begin + at + most])
            chosen[begin + at : begin + at + left] = 0
            kept = _run(right[begin + at + left : begin + at + drafted])
            at, passes, steps = at + left + kept + 1, passes + 1, steps + drafted
    return Rounds(chosen, passes, steps)


def _run(yes: NDArray[np.bool_]) -> int:
    """How many hold from the first on."""
    return len(yes) if yes.all() else int(yes.argmin())
