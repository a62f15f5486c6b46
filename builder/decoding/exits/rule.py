"""Which tokens leave at which exit layer: the rule that serving follows, applied to whole answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FULL = -1  # the token ran through all layers


@dataclass(frozen=True)
class Answers:
    """What every exit layer would have said at every token of some answers.

    confidence and right [tokens, layers], layers from the first exit on; `right`: the exit's token is the full model's. `lengths` are
    the tokens of each answer, in order.
    """

    confidence: NDArray[np.float64]
    right: NDArray[np.bool_]
    lengths: tuple[int, ...]


def exits(answers: Answers, thresholds: NDArray[np.float64], max_pending: int) -> NDArray[np.int64]:
    """[tokens]: the index of the layer each token leaves at, or FULL, with `thresholds` [layers].

    A token leaves at the first layer that is sure enough. The first token of an answer does not, since the prompt's pass gives it, nor
    does the one after `max_pending` in a row that did, since that is where their keys and values are filled.
    """
    sure = answers.confidence >= thresholds
    chosen = np.where(sure.any(axis=1), sure.argmax(axis=1), FULL)
    chosen[starts(answers.lengths)] = FULL
    places = np.arange(len(chosen))
    run = places - np.maximum.accumulate(np.where(chosen == FULL, places, 0))  # 1 for the first that may leave after one that did not
    chosen[run % (max_pending + 1) == 0] = FULL
    return chosen


def starts(lengths: tuple[int, ...]) -> NDArray[np.int64]:
    """Place of each answer's first token."""
    return np.cumsum((0, *lengths[:-1]))


def losses(answers: Answers, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """[answers]: the share of an answer's tokens that left and differ from the full model's at the same place."""
    left = chosen != FULL
    wrong = left & ~np.take_along_axis(answers.right, np.maximum(chosen, 0)[:, None], axis=1)[:, 0]
    shares: NDArray[np.float64] = np.add.reduceat(wrong.astype(float), starts(answers.lengths)) / np.asarray(answers.lengths)
    return shares
