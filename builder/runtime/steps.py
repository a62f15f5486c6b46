"""What one iteration of the decode loop did to each request, and when: for those who follow single requests."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # torch, which who only reads steps must not pay for
    from builder.runtime.decoder import Verdict
    from builder.runtime.sequence import Sequence


@dataclass(frozen=True)
class Prefill:
    """`tokens` of a prompt that ran in the pass; after a preemption those of the answer too."""

    request_id: str
    sample: int
    tokens: int


@dataclass(frozen=True)
class Round:
    """`limit` is K. `tokens` are those won: an answer that ends takes fewer of its last round. `left_at` is the layer of an early exit."""

    request_id: str
    sample: int
    limit: int
    drafted: int
    accepted: int
    tokens: int
    left_at: int | None = None


@dataclass(frozen=True)
class Step:
    """Drafting from `began` to `drafted`, one target pass from then to `ended`: seconds, monotonic clock."""

    began: float
    drafted: float
    ended: float
    prefills: tuple[Prefill, ...]
    rounds: tuple[Round, ...]


class StepObserver(Protocol):
    @property
    def active(self) -> bool:
        """Whether it wants the next step. None is put together for an observer that does not."""

    def step_done(self, step: Step) -> None:
        """Called by the loop's thread, before the outputs of the step leave."""


def step_of(
    limits: Items[tuple[Sequence, int]],
    chunks: Items[tuple[Sequence, int]],
    verdicts: Items[Verdict],
    *,
    began: float,
    drafted: float,
    ended: float,
) -> Step:
    """`limits` are of the decoding sequences; `verdicts`, in any order, of those and of finished prefills."""
    length = dict(limits)
    rounds = [
        Round(s.request.id, s.answer.index, length[s], v.drafted, v.accepted, len(v.token_ids), v.left_at)
        for v in verdicts
        if (s := v.sequence) in length
    ]
    prefills = [Prefill(sequence.request.id, sequence.answer.index, tokens) for sequence, tokens in chunks]
    return Step(began, drafted, ended, tuple(prefills), tuple(rounds))
