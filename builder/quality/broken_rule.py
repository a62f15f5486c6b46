"""The negative control: an acceptance rule that is wrong in the way that pays best, and silently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from builder.decoding import acceptance
from builder.decoding.random import Purpose
from builder.decoding.sampling import sample


def keep_all(p: Tensor, q: Tensor | None, draft: Sequence[int], uniforms: NDArray[np.float64]) -> tuple[int, int]:  # noqa: ARG001
    """Every drafted token stands: output follows the draft's distribution q instead of p. Arguments as of `acceptance.verify`."""
    return len(draft), sample(p[len(draft)], float(uniforms[len(draft), Purpose.RESAMPLE]))


@contextmanager
def broken_acceptance() -> Iterator[None]:
    """Inside, every decode loop of this process accepts wrongly. A loop that this misses shows as a control that was not caught."""
    with mock.patch.object(acceptance, "verify", keep_all):
        yield
