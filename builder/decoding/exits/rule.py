"""Which tokens leave at which exit layer: the rule that serving follows, applied to whole answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FULL = -1  # the token ran through all layers


@dataclass(frozen=True)
class ExitLimits:
    """What keeps a token from leaving however sure a layer is: see early_exit.max_pending and early_exit.protected_tokens."""

    max_pending: int
    protected_tokens: int = 1

    def largest_share(self, longest: int) -> float:
        """The most that may leave of an answer of at most `longest` tokens."""
        lengths = np.arange(1, longest + 1)
        behind = np.maximum(lengths - self.protected_tokens, 0)
        return float(((behind - behind // (self.max_pending + 1)) / lengths).max())


@dataclass(frozen=True)
class Answers:
    """What every exit layer would have said at every token of some answers.

    confidence and right [tokens, layers], layers from the first exit on; `right`: the exit's token is the full model's. `lengths` are
    the tokens of each answer, in order.
    """

    confidence: NDArray[np.float64]
    right: NDArray[np.bool_]
    lengths: tuple[int, ...]


def exits(answers: Answers, thresholds: NDArray[np.float64], limits: ExitLimits) -> NDArray[np.int64]:
    """[tokens]: the index of the layer each token leaves at, or FULL, with `thresholds` [layers].

    A token leaves at the first layer that is sure enough. The first `protected_tokens` of an answer do not (the prompt's pass gives the
    very first, and a wrong one among them turns all that follows), nor does the one after `max_pending` in a row that did, since that is
    where their keys and values are filled.
    """
    sure = answers.confidence >= thresholds
    chosen = np.where(sure.any(axis=1), sure.argmax(axis=1), FULL)
    chosen[_protected(answers.lengths, limits)] = FULL
    chosen[_run(chosen) % (limits.max_pending + 1) == 0] = FULL
    return chosen


def asked(chosen: NDArray[np.int64], lengths: tuple[int, ...], limits: ExitLimits) -> NDArray[np.bool_]:
    """[tokens]: whether exit layers were asked for it; of the others it was known that they would not leave."""
    pending = np.concatenate([[0], _run(chosen)[:-1]])
    return ~_protected(lengths, limits) & (pending < limits.max_pending)


def _protected(lengths: tuple[int, ...], limits: ExitLimits) -> NDArray[np.bool_]:
    return np.arange(sum(lengths)) - np.repeat(starts(lengths), lengths) < limits.protected_tokens


def _run(chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """[tokens]: how many in a row left, up to this one."""
    places = np.arange(len(chosen))
    run: NDArray[np.int64] = places - np.maximum.accumulate(np.where(chosen == FULL, places, 0))
    return run


def starts(lengths: tuple[int, ...]) -> NDArray[np.int64]:
    """Place of each answer's first token."""
    return np.cumsum((0, *lengths[:-1]))


def losses(answers: Answers, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """[answers]: the share of an answer's tokens that left and differ from the full model's at the same place."""
    left = chosen != FULL
    wrong = left & ~np.take_along_axis(answers.right, np.maximum(chosen, 0)[:, None], axis=1)[:, 0]
    shares: NDArray[np.float64] = np.add.reduceat(wrong.astype(float), starts(answers.lengths)) / np.asarray(answers.lengths)
    return shares
