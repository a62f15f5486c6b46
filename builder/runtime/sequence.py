"""One request while it is being decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from torch import Tensor

from builder.runtime.answer import Answer
from builder.runtime.request import Output, Request


class Status(Enum):
    WAITING = auto()  # in the queue, holds no blocks
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False)
class Unfilled:
    """A token whose successor left early: its keys and values are right in the first `layer` layers, and missing above.

    hidden [hidden_size] is its state after those layers.
    """

    position: int
    layer: int
    hidden: Tensor


@dataclass(eq=False)
class Sequence:
    """token_ids are the prompt and every emitted token; the keys and values of the first `num_computed` are right.

    Between steps a decoding sequence has exactly one token that was not run: the last, whose successor is next. Between that and the
    computed ones lie the `unfilled`, in order.
    """

    request: Request
    on_output: Callable[[Output], None]
    order: int  # place in arrival order; the largest is preempted first
    seed: int
    token_ids: list[int]
    answer: Answer
    num_computed: int = 0  # positions right in the target's cache
    draft_computed: int = 0  # positions right in the draft's own cache; not used when the caches are shared
    unfilled: list[Unfilled] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)  # block ids, in order of position; one table for both caches
    status: Status = Status.WAITING
    may_copy: bool = True  # the control's word on its drafts: copied where its text repeats itself, else made by the draft model there too
    leader: Sequence | None = None  # of several answers to one prompt the first, whose prompt blocks the others share

    @property
    def pending(self) -> int:
        """Tokens not run through the target: 1 when decoding, more while the prompt is prefilled."""
        return len(self.token_ids) - self.num_computed - len(self.unfilled)

    def skip(self, positions: int, draft_positions: int) -> None:
        """Start behind a cached prefix. What a preempted sequence finds again, it had to compute: the user is not told it was cached."""
        self.num_computed += positions
        self.draft_computed += draft_positions
        if not self.answer.tally.target_passes:
            self.answer.tally.cached_tokens = positions

    @property
    def drawn(self) -> int:
        """Length of the text, what was evicted included: numbers the random draws, of which none may be used twice."""
        return len(self.token_ids) + self.answer.tally.evicted_tokens

    @property
    def answered(self) -> int:
        """Tokens of the answer that are known."""
        return self.drawn - len(self.request.prompt_ids)

    @property
    def has_answered(self) -> bool:
        """Whether a token of the answer is known."""
        return self.answered > 0

    def evict(self, places: range) -> None:
        """Drop these tokens. What is behind them moves to new positions: nothing computed is right any longer."""
        del self.token_ids[places.start : places.stop]
        self.answer.evicted(len(places))
        self.forget()

    def forget(self) -> None:
        """Preemption by recompute: the tokens stay, their keys and values are made anew."""
        self.num_computed = 0
        self.draft_computed = 0
        self.unfilled.clear()
        self.status = Status.WAITING
