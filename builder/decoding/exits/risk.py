"""A test of "the expected loss is above the level": a small p-value says that it is not.

It is valid at every sample size, for independent observations of one distribution, whatever that is. Tokens of one answer are not
independent, answers to different prompts are: take the share of differing tokens in an answer as one observation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_BOLDEST = 0.95  # share of the largest bet that cannot lose everything in one observation


def betting(losses: Floats, level: float, most: float = 1.0) -> Floats:
    """For losses [observations, hypotheses] in [0, most]: one p-value a column (Waudby-Smith and Ramdas 2024, "Estimating means of
    bounded random variables by betting").

    A gambler bets against "the mean is above `level`", each time a share that follows from earlier observations alone. Were the
    hypothesis true, his capital would exceed 1/p with a chance of at most p (Ville). Losses that vary little lose him little, so this is
    far sharper than Hoeffding-Bentkus where most answers have a few wrong tokens and none has many.
    """
    before = np.arange(len(losses))[:, None] + 1.0  # observations seen before each, counting one that is assumed
    sums = np.vstack([np.zeros((1, losses.shape[1])), np.cumsum(losses, axis=0)[:-1]])
    squares = np.vstack([np.zeros((1, losses.shape[1])), np.cumsum(losses**2, axis=0)[:-1]])
    mean = (sums + level / 2) / before
    variance = np.maximum((squares + level**2) / before - mean**2, 1e-9)
    edge = np.maximum(level - mean, 0.0)
    bets = np.minimum(edge / (variance + edge**2), _BOLDEST / max(most - level, 1e-9))
    capital = np.cumsum(np.log1p(bets * (level - losses)), axis=0)
    p: Floats = np.exp(-np.maximum(capital.max(axis=0, initial=0.0), 0.0))
    return p
