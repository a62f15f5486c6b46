"""One line of a memory table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryItem:
    """`how` is the arithmetic in words, so that a reader can redo it."""

    name: str
    size: int  # bytes
    how: str
