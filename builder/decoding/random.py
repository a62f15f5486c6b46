"""Uniform numbers of one request. They depend on its seed and on the position in the sequence only.

Batch neighbours, chunking, preemption and the draft length therefore never change what a request draws.
"""

from __future__ import annotations

import secrets
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """Column of `uniforms`: each decision about a position has its own, independent number."""

    DRAFT = 0  # which token the draft model proposes
    ACCEPT = 1  # whether the proposed token is kept
    RESAMPLE = 2  # which token follows a refusal, or the bonus token, or a plain token


WORDS = 4  # Philox4x64 turns one counter value into four 64-bit words


def uniforms(seed: int, position: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) for positions position..position+count-1: float64 [count, 3], columns as in Purpose.

    Counter-based (Salmon et al. 2011): the counter is the position, so no state has to be kept or rewound.
    """
    raw = np.random.Philox(key=seed % 2**64, counter=position).random_raw(WORDS * count)
    numbers: NDArray[np.float64] = (raw.reshape(count, WORDS)[:, : len(Purpose)] >> np.uint64(11)) * 2.0**-53
    return numbers


def sample_seed(seed: int, index: int) -> int:
    """The seed of answer `index` of a request that wants several; the first has the request's own, as if it were alone."""
    if not index:
        return seed
    return int(np.random.SeedSequence((seed % 2**64, index)).generate_state(1, np.uint64)[0])


def fresh_seed() -> int:
    """A seed for a request that brought none."""
    return secrets.randbits(63)
