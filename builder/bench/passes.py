"""One pass over made-up rows of one sequence, for timing."""

from __future__ import annotations

import torch

from builder.decoding.sampling import greedy_ids
from builder.runtime.runner import Rows, Runner


def rows_at(start: int, count: int, blocks: int) -> Rows:
    """`count` rows of one sequence from position `start`; which tokens they are changes no time."""
    numbers = torch.arange(count, dtype=torch.int32)
    return Rows(numbers, numbers + start, torch.zeros_like(numbers), torch.arange(blocks, dtype=torch.int32)[None])


def run_pass(runner: Runner, rows: Rows) -> list[int]:
    """A whole pass, down to the token each row would give, made as the loop makes it: torch's own argmax would wake torch's threads,
    which then spin beside the next pass."""
    return greedy_ids(runner.head(runner.layers(runner.embed(rows), rows, 0, runner.config.num_layers)))
