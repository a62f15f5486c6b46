"""The rows of a pass on grids of equal width, as the device's attention wants them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from builder.runtime.runner import Rows

SHORT = 16  # rows: sequences with no more share a grid; those with more, prompts, have one each
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """`positions` [S, R]: of a row in its sequence, -1 at a place that no row takes. `blocks` [S, B]: of the cache, `scratch` where a
    sequence has none."""

    positions: Ints
    blocks: Ints


@dataclass(frozen=True)
class Layout:
    """All grids of a pass, their places numbered one after the other.

    lay [places]  the row at each place; any row at a place that no row takes
    back [rows]   the place of each row
    """

    grids: tuple[Grid, ...]
    lay: Ints
    back: Ints

    @property
    def short(self) -> bool:
        """Whether nobody's prompt is in it: such passes come again in a few shapes."""
        return len(self.grids) == 1 and self.grids[0].positions.shape[1] <= SHORT


def layout(rows: Rows, block_size: int, scratch: int) -> Layout:
    """A grid of short sequences has a power of two of each size, so that few shapes are met."""
    owners, positions = rows.sequence.numpy(), rows.positions.numpy().astype(np.int64)
    tables = np.where(rows.block_tables.numpy() < 0, scratch, rows.block_tables.numpy()).astype(np.int64)
    begins = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
    counts = np.diff(np.r_[begins, len(owners)])
    grids, lay, back, taken = [], [], np.empty(len(owners), dtype=np.int64), 0
    for chosen in _groups(counts):
        lines, width = len(chosen), int(counts[chosen].max())
        last = int(positions[begins[chosen] + counts[chosen] - 1].max())
        deep = last // block_size + 1
        if width <= SHORT:
            lines, width, deep = _power(lines), _power(width), _power(deep)
        grid = Grid(np.full((lines, width), -1, dtype=np.int64), np.full((lines, deep), scratch, dtype=np.int64))
        row_at = np.zeros((lines, width), dtype=np.int64)
        for line, sequence in enumerate(chosen):
            begin, count = begins[sequence], counts[sequence]
            grid.positions[line, :count] = positions[begin : begin + count]
            row_at[line, :count] = np.arange(begin, begin + count)
            back[begin : begin + count] = taken + line * width + np.arange(count)
            table = tables[owners[begin], :deep]
            grid.blocks[line, : len(table)] = table
        grids.append(grid)
        lay.append(row_at.ravel())
        taken += lines * width
    return Layout(tuple(grids), np.concatenate(lay), back)


def _groups(counts: Ints) -> Iterator[Ints]:
    """Places of the sequences of each grid."""
    short = np.flatnonzero(counts <= SHORT)
    if len(short):
        yield short
    for place in np.flatnonzero(counts > SHORT):
        yield np.array([place])


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()
