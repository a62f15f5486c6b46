"""What drafts by an exit would win: the rounds of self-speculation, played over answers whose every token an exit has judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from builder.decoding.exits.costs import Costs
from builder.decoding.exits.rule import Answers

LEAST = np.linspace(0.2, 0.95, 31)  # confidences that are tried
DRAFT_TOKENS = 4  # of a round, at most


@dataclass(frozen=True)
class Rounds:
    """`drafted` tokens were proposed and `kept`; `speedup` is tokens in the time that plain decoding has one in."""

    threshold: float
    drafted: int
    kept: int
    speedup: float


def play(answers: Answers, place: int, threshold: float, costs: Costs, most: int = DRAFT_TOKENS) -> Rounds:
    """Rounds with the exit layer at `place` of the answers' columns.

    A round reads all weights once, and those below the exit once more for each drafted token; what a further row adds to a pass that
    reads them anyway is left out. After a token that is refused the exit is taken to be as sure as it was on the answer itself.
    """
    sure = _runs(answers.confidence[:, place] >= threshold, answers.lengths)
    right = _runs(answers.right[:, place], answers.lengths)
    drafted = kept = looks = rounds = at = 0
    while at < len(sure):
        proposed = min(most, sure[at])
        accepted = min(proposed, right[at])
        looks += min(most, proposed + 1)
        drafted, kept, rounds = drafted + proposed, kept + accepted, rounds + 1
        at += accepted + 1  # a last round that goes beyond its answer wins a token less: one in a hundred
    time = rounds + drafted * costs.layers + looks * costs.head
    return Rounds(threshold, drafted, kept, len(sure) / time if time else 1.0)


def best(answers: Answers, place: int, costs: Costs) -> Rounds:
    """The threshold that wins most."""
    return max((play(answers, place, float(least), costs) for least in LEAST), key=lambda rounds: rounds.speedup)


def _runs(yes: NDArray[np.bool_], lengths: tuple[int, ...]) -> list[int]:
    """[tokens]: how many in a row hold from each on, within its answer."""
    runs: list[int] = []
    for answer in reversed(np.split(yes, np.cumsum(lengths)[:-1])):
        length = 0
        for holds in answer[::-1].tolist():
            length = length + 1 if holds else 0
            runs.append(length)
    return runs[::-1]
