"""What a peer must do to be measured: decode one prompt greedily and say when tokens arrive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from loadtest.peers.entry import Mode

OnTokens = Callable[[int], None]


@dataclass(frozen=True)
class Setup:
    """One measurement's conditions, the same for every peer. `context` is the longest prompt and answer together, in tokens."""

    model: Path
    mode: Mode
    threads: int
    draft_tokens: int
    context: int
    end_ids: tuple[int, ...]


class Decoder(Protocol):
    """One peer, loaded in one mode. `precision` names the weights: `bf16`, or `bf16+q4_0` for a target and its draft."""

    precision: str
    version: str

    def decode(self, ids: Sequence[int], max_tokens: int, on_tokens: OnTokens) -> int | None:
        """Answer `ids` greedily until an end token or `max_tokens`; call `on_tokens(count)` at each arrival.

        Returns the number of target passes after the first token when the peer speculates, else None.
        """
        ...


def rounded_context(tokens: int) -> int:
    """Room for `tokens` positions, in steps of 256 as llama.cpp pads its cache."""
    return 256 * math.ceil(tokens / 256)
