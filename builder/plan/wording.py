"""Lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[object], word: str = "and") -> str:
    """ "32", "32 and 64", "32, 64 and 128"."""
    *first, last = [str(item) for item in items]
    return f"{', '.join(first)} {word} {last}" if first else last
