"""Passes over a runner, the way the decode loop makes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from builder.runtime.runner import Rows, Runner


def rows_of(parts: Sequence[tuple[Sequence[int], int, Sequence[int]]]) -> Rows:
    """One row batch of several sequences: (token ids, first position, block ids) each."""
    ids = [token for tokens, _, _ in parts for token in tokens]
    positions = [start + i for tokens, start, _ in parts for i in range(len(tokens))]
    sequence = [index for index, (tokens, _, _) in enumerate(parts) for _ in tokens]
    width = max(len(blocks) for _, _, blocks in parts)
    tables = [[*blocks, *[-1] * (width - len(blocks))] for _, _, blocks in parts]
    return Rows(*(torch.tensor(values, dtype=torch.int32) for values in (ids, positions, sequence, tables)))


def run(runner: Runner, rows: Rows) -> torch.Tensor:
    """Logits [rows, vocab]."""
    return runner.head(runner.layers(runner.embed(rows), rows, 0, runner.config.num_layers))


def run_in_chunks(runner: Runner, ids: Sequence[int], sizes: Sequence[int], blocks: Sequence[int]) -> torch.Tensor:
    """Logits of one sequence whose rows pass in chunks of the given sizes."""
    logits, at = [], 0
    for size in sizes:
        logits.append(run(runner, rows_of([(ids[at : at + size], at, blocks)])))
        at += size
    assert at == len(ids)
    return torch.cat(logits)
