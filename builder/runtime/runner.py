"""The one seam between the decode loop and an engine: embed, layers(start, stop), head over ragged rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from builder.decoding.stopping import StopRule
from builder.runtime.exits import ExitPoint
from builder.weights.config import ModelConfig


@dataclass(frozen=True)
class Rows:
    """One pass's rows. Rows of one sequence are contiguous and their positions ascend; a row attends to the
    positions 0..position of its own sequence, its own key and value included.

    token_ids    int32 [rows]
    positions    int32 [rows]            place of the token in its sequence, from 0
    sequence     int32 [rows]            index into block_tables
    block_tables int32 [sequences, max_blocks]  block ids of each sequence in order; unused tail is -1
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    sequence: torch.Tensor
    block_tables: torch.Tensor


class Runner(Protocol):
    """One model on one device. Its paged KV cache has `num_blocks` blocks of `block_size` positions each."""

    config: ModelConfig

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        """Allocate the KV cache (zeroed). Called once before the first pass."""
        ...

    def cache_bytes_per_block(self, block_size: int) -> int: ...

    def embed(self, rows: Rows) -> torch.Tensor:
        """Token embeddings, float32 [rows, hidden_size]."""
        ...

    def layers(self, hidden: torch.Tensor, rows: Rows, start: int, stop: int) -> torch.Tensor:
        """Run layers start..stop-1 in place on hidden [rows, hidden_size] and return it; writes their keys and values."""
        ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and vocabulary head: logits, float32 [rows, vocab_size]."""
        ...


@runtime_checkable
class GreedyRunner(Runner, Protocol):
    """A Runner that can decode greedily by itself: without logits, and drafts without coming back between two tokens."""

    def greedy(self, hidden: torch.Tensor) -> list[int]:
        """The most probable token after each row of hidden [rows, hidden_size], the lowest id of equals: the argmax of `head`."""
        ...

    def continue_greedily(self, rows: Rows, lengths: torch.Tensor, stop: StopRule | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Up to lengths[row] tokens (int32 [rows]) that follow each row, fewer where `stop` ends it: int32 [rows, longest], -1 beyond a
        row's end. With `stop` also the probability of each, float32 [rows, longest]; without, [0, longest].

        The rows belong to different sequences. The keys and values of all tokens but the last drafted ones are written.
        """
        ...


@runtime_checkable
class ExitRunner(GreedyRunner, Protocol):
    """A GreedyRunner that asks exit heads by itself, and drafts by them."""

    def to_exit(
        self, hidden: torch.Tensor, rows: Rows, start: int, stop: int, asked: Sequence[int], points: Sequence[ExitPoint]
    ) -> tuple[int, list[int], list[float]]:
        """Run layers start.. in place, up to the first of `points` (ascending) whose head gives one of the `asked` rows a token with
        probability point.threshold or more, else up to layer `stop`.

        Returns the place of that point, len(points) where it came to `stop`; and there of the asked rows the token (-1: one the head does
        not know) and its probability (then 0).
        """
        ...

    def draft_to_exit(self, rows: Rows, lengths: torch.Tensor, point: ExitPoint) -> tuple[torch.Tensor, torch.Tensor]:
        """Up to lengths[row] tokens (int32 [rows]) that follow each row by the first point.layer layers and the exit head there, fewer
        where it is less sure than point.threshold: int32 [rows, longest], -1 beyond a row's end.

        Also what those layers made of the row's own token and of each drafted one, float32 [longest + 1, rows, hidden_size]; undefined
        beyond a row's end. Their keys and values are written. The rows belong to different sequences.
        """
        ...
