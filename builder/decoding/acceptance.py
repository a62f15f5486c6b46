"""Which drafted tokens the target keeps (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

p is the target's distribution, q the draft's. A drafted token x is kept with probability min(1, p(x)/q(x)); the
first refusal is replaced by a token from max(p - q, 0) renormalised; when all K are kept, p[K] gives a bonus token.
Whatever q is, each emitted token is then distributed exactly as p.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from builder.decoding.random import Purpose
from builder.decoding.sampling import sample


def verify(p: Tensor, q: Tensor | None, draft: Sequence[int], uniforms: NDArray[np.float64]) -> tuple[int, int]:
    """How many drafted tokens are kept, and the token that follows them.

    p [K+1, V]; q [K, V], or None when the proposer was certain of each token (n-grams: q is one-hot);
    draft [K]; uniforms [K+1, 3] with columns as in Purpose.
    """
    for i, token in enumerate(draft):
        q_token = 1.0 if q is None else float(q[i, token])
        if uniforms[i, Purpose.ACCEPT] * q_token >= float(p[i, token]):  # u >= p/q, without dividing
            rest = residual(p[i], None if q is None else q[i], token)
            return i, sample(rest, float(uniforms[i, Purpose.RESAMPLE]))
    bonus = len(draft)
    return bonus, sample(p[bonus], float(uniforms[bonus, Purpose.RESAMPLE]))


def residual(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """max(p - q, 0) [V], not renormalised; q None stands for one-hot at `token`."""
    if q is None:
        rest = p.clone()
        rest[token] = 0.0
    else:
        rest = (p - q).clamp_min(0.0)
    # p == q up to rounding: such a refusal has probability 0, and p is the only sensible answer
    return rest if bool(torch.any(rest > 0)) else p


def verify_greedy(best: Sequence[int], draft: Sequence[int]) -> tuple[int, int]:
    """The same rule at temperature 0: p is one-hot, so a drafted token is kept when it is the target's argmax.

    best [K+1] are the target's argmax ids, draft [K].
    """
    kept = 0
    while kept < len(draft) and draft[kept] == best[kept]:
        kept += 1
    return kept, best[kept]
