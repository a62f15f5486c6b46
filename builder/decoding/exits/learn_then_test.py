"""Thresholds whose disagreement with the full model is bounded (Learn then Test: Angelopoulos, Bates, Candès, Jordan and Lei 2021).

Candidates run from strict to loose and are made of answers that the test does not see. Each is tested in turn, and the first that cannot
be shown safe ends the walk (fixed-sequence testing): no correction for their number is due, and whatever distribution the answers come
from, the chance that the chosen thresholds exceed the level is at most 1 - confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from builder.decoding.exits.risk import betting
from builder.decoding.exits.rule import Answers, ExitLimits, exits, losses

NEVER = np.inf  # threshold of a layer that nothing leaves at
_CHANCES = 1 - np.geomspace(0.0005, 0.6, 240)  # of being right, from strict to loose; steps this small leave little of the bound unused


@dataclass(frozen=True)
class Choice:
    """`thresholds` [layers] and their p-value; `disagreement` and `share` of tokens that leave are those of the tested answers."""

    thresholds: tuple[float, ...]
    p_value: float
    disagreement: float
    share: float


def candidates(learned: Answers) -> NDArray[np.float64]:
    """Thresholds [candidates, layers] from strict to loose: a token may leave where its chance of being right is at least so much.

    The chance at each confidence is the isotonic fit of one layer's rows, drawn through the middles of its steps; layers then share one
    scale, whatever their confidence means.
    """
    columns = []
    for layer in range(learned.confidence.shape[1]):
        order = np.argsort(learned.confidence[:, layer], kind="stable")
        confidence = learned.confidence[order, layer]
        fit = optimize.isotonic_regression(learned.right[order, layer].astype(float))
        steps = fit.blocks[:-1]
        middles = np.add.reduceat(confidence, steps) / np.diff(fit.blocks)
        columns.append(np.interp(_CHANCES, fit.x[steps], middles, right=NEVER))
    distinct = np.unique(np.stack(columns, axis=1), axis=0)[::-1]  # fewer tests that decide nothing
    useful: NDArray[np.float64] = distinct[np.isfinite(distinct).any(axis=1)]
    return useful


def choose(
    tested: Answers, thresholds: NDArray[np.float64], level: float, confidence: float, limits: ExitLimits, longest: int
) -> Choice | None:
    """The loosest of `thresholds` [candidates, layers] reached before a test fails; None when the strictest fails. No answer may have
    more than `longest` tokens: a test is sharper where a smaller share of them can be wrong."""
    left = [exits(tested, row, limits) for row in thresholds]
    table = np.stack([losses(tested, chosen) for chosen in left], axis=1) if len(left) else np.zeros((len(tested.lengths), 0))
    p_values = betting(table, level, limits.largest_share(longest))
    passed = fixed_sequence(p_values, 1 - confidence)
    if not passed:
        return None
    last = passed - 1
    share = float((left[last] >= 0).mean())
    return Choice(tuple(map(float, thresholds[last])), float(p_values[last]), float(table[:, last].mean()), share)


def fixed_sequence(p_values: NDArray[np.float64], level: float) -> int:
    """How many hypotheses, from the first on, are rejected before one is not."""
    refused = np.flatnonzero(p_values > level)
    return int(refused[0]) if len(refused) else len(p_values)
