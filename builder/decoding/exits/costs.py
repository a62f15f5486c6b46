"""What an exit costs and saves, by the weights that a pass reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from builder.decoding.exits.rule import FULL


@dataclass(frozen=True)
class Costs:
    """Shares of a plain pass: the layers below the exit, and one look at its head."""

    layers: float
    head: float


def time_a_token(chosen: NDArray[np.int64], asked: NDArray[np.bool_], used: Sequence[bool], costs: Sequence[Costs]) -> float:
    """Mean time of tokens that leave at the layers of `chosen` [tokens] (an index, or FULL), in plain passes. A token that is `asked` is
    looked at by each exit that is `used` up to where it leaves; keys and values that are filled later ride along with rows that read the
    weights anyway."""
    looks = np.cumsum([0.0] + [cost.head if use else 0.0 for use, cost in zip(used, costs, strict=True)])
    place = np.where(chosen == FULL, len(costs), chosen)
    layers = np.array([cost.layers for cost in costs] + [1.0])
    seen = np.minimum(place + 1, len(costs))
    return float((layers[place] + np.where(asked, looks[seen], 0.0)).mean())
