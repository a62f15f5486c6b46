"""Ragged rows of one pass, built from Python lists in a handful of tensor calls whatever the batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from builder.runtime.runner import Rows


def block_tables(blocks: Sequence[Sequence[int]]) -> Tensor:
    """int32 [sequences, longest], unused tails -1."""
    tables = np.full((len(blocks), max(map(len, blocks), default=0)), -1, dtype=np.int32)
    for row, ids in enumerate(blocks):
        tables[row, : len(ids)] = ids
    return torch.from_numpy(tables)


def ragged(parts: Iterable[tuple[int, int, Sequence[int]]], tables: Tensor) -> tuple[Rows, list[int]]:
    """Rows of (index into tables, position of the first token, tokens), and the row after each part's last one."""
    tokens: list[int] = []
    positions: list[int] = []
    owners: list[int] = []
    ends: list[int] = []
    for index, start, ids in parts:
        tokens += ids
        positions += range(start, start + len(ids))
        owners += [index] * len(ids)
        ends.append(len(tokens))
    columns = torch.from_numpy(np.array((tokens, positions, owners), dtype=np.int32))
    return Rows(columns[0], columns[1], columns[2], tables), ends
