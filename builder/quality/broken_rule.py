"""The negative control: an acceptance rule with the two mistakes that are made most easily, and that nothing else shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from builder.decoding import acceptance
from builder.decoding.acceptance import residual
from builder.decoding.random import Purpose
from builder.decoding.sampling import sample


def careless(p: Tensor, q: Tensor | None, draft: Sequence[int], uniforms: NDArray[np.float64]) -> tuple[int, int]:
    """Keeps a drafted token with probability p instead of min(1, p/q), and any token that was not drawn from a distribution.

    Arguments and result as of `acceptance.verify`.
    """
    for i, token in enumerate(draft):
        if q is not None and uniforms[i, Purpose.ACCEPT] >= float(p[i, token]):
            return i, sample(residual(p[i], q[i], token), float(uniforms[i, Purpose.RESAMPLE]))
    return len(draft), sample(p[len(draft)], float(uniforms[len(draft), Purpose.RESAMPLE]))


@contextmanager
def broken_acceptance() -> Iterator[None]:
    """Inside, every decode loop of this process accepts wrongly. A loop that this misses shows as a control that was not caught."""
    with mock.patch.object(acceptance, "verify", careless):
        yield
