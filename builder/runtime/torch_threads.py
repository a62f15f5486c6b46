"""Torch's own threads, which only get in the way of the kernels': those hold every core already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Inside, torch works in the calling thread alone; a microsecond.

    After an operation in two threads torch's second one spins on a core for a while, and the kernels' next pass waits for that core. With
    one thread sampled answers, whose probabilities torch computes, decode clearly faster on two cores, and so do many greedy streams.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
