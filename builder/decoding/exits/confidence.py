"""How sure an exit is of its token. Every measure is larger for a surer row, and lies between 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Measure = Callable[[Tensor], Tensor]


def probability(logits: Tensor) -> Tensor:
    """Probability of the most probable token: logits [rows, V] -> [rows]."""
    return logits.softmax(-1).amax(-1)


def margin(logits: Tensor) -> Tensor:
    """Probability of the most probable token less that of the second: logits [rows, V] -> [rows]."""
    first, second = logits.softmax(-1).topk(2).values.unbind(-1)
    return first - second


def certainty(logits: Tensor) -> Tensor:
    """1 - H / ln V with H the entropy in nats: logits [rows, V] -> [rows]. 0 for the uniform distribution, 1 for a certain one."""
    p = logits.softmax(-1)
    return 1 + p.xlogy(p).sum(-1) / math.log(logits.shape[-1])


def probabilities_of(token_ids: Sequence[int], logits: NDArray[Any]) -> NDArray[np.float32]:
    """Probability of each of `token_ids` by its row of logits [tokens, V], whatever type those have."""
    rows = logits.astype(np.float32)
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    chosen: NDArray[np.float32] = powers[np.arange(len(token_ids)), list(token_ids)] / powers.sum(axis=-1)
    return chosen


MEASURES: Mapping[str, Measure] = {"probability": probability, "margin": margin, "entropy": certainty}
