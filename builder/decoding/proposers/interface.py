"""What a proposer is given and what it returns. A new proposer is one file in this folder: see `registry`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from builder.decoding.params import SamplingParams
from builder.decoding.stopping import StopRule


@dataclass(frozen=True)
class Context:
    """A sequence that may be drafted for. `index` is its place in the caller's batch; at most `limit` tokens are wanted.

    uniforms [limit + 1, 3] are the request's numbers for the next positions; None for a greedy request. With `stop` a draft
    drawn from distributions ends where it says.
    """

    index: int
    token_ids: Sequence[int]
    limit: int
    sampling: SamplingParams
    uniforms: NDArray[np.float64] | None = None
    stop: StopRule | None = None
    may_copy: bool = True  # its draft may come from its own text, where a proposer has the choice


@dataclass
class Draft:
    """Proposed tokens [K] and q, the distribution each was drawn from: K tensors [V], none when the proposer was certain.

    confidences [K]: probability of the most likely token of each distribution; none where no rule to stop asked for them.
    `copied` from the text: no step of a model was run for it.
    """

    token_ids: list[int] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    copied: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)


class DraftModel(Protocol):
    """The draft model's passes, each batched over the contexts given. `begin` and `step` return the contexts whose next token is to be
    drafted, and logits of it, [contexts, V]; which those are must not hang on a token that is drawn from these logits."""

    def greedy(self, contexts: Sequence[Context]) -> list[Draft] | None:
        """The up to context.limit most probable tokens that follow each context, one after another, where the model can make them
        in one go; else None, and nothing was run."""
        ...

    def begin(self, contexts: Sequence[Context]) -> tuple[list[Context], Tensor]:
        """Run what the draft has not seen yet of each context. One that is not up to date after it is left out."""
        ...

    def step(self, contexts: Sequence[Context], token_ids: Sequence[int], drafted: int) -> tuple[list[Context], Tensor]:
        """Run one drafted token per context, the one that follows drafted - 1 earlier ones."""
        ...


class Proposer(Protocol):
    def propose(self, contexts: Sequence[Context], model: DraftModel | None) -> list[Draft]:
        """One draft per context, empty where there is nothing to propose. `model` is None if the pipeline has no draft model."""
        ...
