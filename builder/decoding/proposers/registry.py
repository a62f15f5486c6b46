"""Proposers by the name pipeline.yaml calls them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from builder.decoding.proposers.interface import Proposer
from builder.errors import EngineError

P = TypeVar("P", bound=Proposer)


@dataclass(frozen=True)
class Entry:
    make: Callable[[], Proposer]
    needs_draft_model: bool
    needs_exit: bool  # the model it is given is the target's first layers and an exit head


ENTRIES: dict[str, Entry] = {}


def register(name: str, *, needs_draft_model: bool, needs_exit: bool = False) -> Callable[[type[P]], type[P]]:
    """Class decorator: make a proposer known as `name`."""

    def enter(make: type[P]) -> type[P]:
        ENTRIES[name] = Entry(make, needs_draft_model, needs_exit)
        return make

    return enter


def entry(name: str) -> Entry:
    """EngineError, with the nearest known name, when there is no such proposer."""
    if name not in ENTRIES:
        near = difflib.get_close_matches(name, ENTRIES, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise EngineError(f"unknown proposer {name!r}", where="speculation.proposer", mend=f"{hint}Known: {', '.join(sorted(ENTRIES))}")
    return ENTRIES[name]
