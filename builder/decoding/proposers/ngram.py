"""Prompt lookup (Saxena 2023): what followed the last tokens when they were seen before, follows again. Costs no pass."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from builder.decoding.proposers.interface import Context, Draft, DraftModel
from builder.decoding.proposers.registry import register

LONGEST, SHORTEST = 4, 2  # tokens of the suffix that must match; the longest match wins, then the most recent


@register("ngram", needs_draft_model=False)
class NgramProposer:
    def propose(self, contexts: Sequence[Context], model: DraftModel | None) -> list[Draft]:  # noqa: ARG002 - the interface's names
        return [Draft(lookup(context.token_ids, context.limit), copied=True) for context in contexts]


def lookup(token_ids: Sequence[int], limit: int) -> list[int]:
    """Up to `limit` tokens that followed the most recent earlier copy of the longest matching suffix; [] without a match."""
    if limit < 1:
        return []
    text = array("i", token_ids).tobytes()
    size = array("i").itemsize
    for length in range(min(LONGEST, len(token_ids) - 1), SHORTEST - 1, -1):
        found = _last_aligned(text, text[-length * size :], size)
        if found is not None:
            return _copy(token_ids, found + length, limit)
    return []


def _last_aligned(text: bytes, pattern: bytes, size: int) -> int | None:
    """Index, in items, of the last copy of pattern that ends before the text does. Byte search is 50 times a Python loop."""
    end = len(text) - 1
    while (at := text.rfind(pattern, 0, end)) >= 0:
        if at % size == 0:
            return at // size
        end = at + len(pattern) - 1
    return None


def _copy(token_ids: Sequence[int], start: int, limit: int) -> list[int]:
    """`limit` tokens from `start` on. Past the end the copy reads what it has just written, so a short period repeats."""
    copied: list[int] = []
    for at in range(start, start + limit):
        copied.append(token_ids[at] if at < len(token_ids) else copied[at - len(token_ids)])
    return copied
