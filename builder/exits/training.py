"""Gradient steps that bring an exit head's distribution to the full model's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from builder.exits.head import LearnableHead

ROWS = 512  # of a step
LEARNING_RATE = 1.5e-3
_WARM_UP = 20  # steps
_CLIP = 1.0


@dataclass(frozen=True)
class Lessons:
    """hidden float32 [rows, hidden]; likely int64 and probabilities float32 [rows, top + 1] over the rows of the head, the last column
    being "another token"."""

    hidden: Tensor
    likely: Tensor
    probabilities: Tensor

    @classmethod
    def of(cls, hidden: Tensor, likely: Tensor, probabilities: Tensor, kept: Tensor) -> Lessons:
        """From the full model's most likely ids [rows, top]; kept int32 [kept], ascending ids of the head's rows."""
        another = len(kept)
        places = torch.searchsorted(kept.long(), likely.long())
        known = places < another
        known &= kept.long()[places.clamp_max(another - 1)] == likely
        shares = probabilities.float() * known
        rest = (1 - shares.sum(-1, keepdim=True)).clamp_min(0)
        columns = torch.cat([torch.where(known, places, another), torch.full((len(hidden), 1), another)], dim=1)
        return cls(hidden, columns, torch.cat([shares, rest], dim=1))


class Training:
    """AdamW over a head. `steps` done so far; the order of rows follows from the seed and it."""

    def __init__(self, head: LearnableHead, lessons: Lessons, seed: int) -> None:
        self.head = head
        self.steps = 0
        self._lessons = lessons
        self._seed = seed
        self._optimiser = torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)

    @property
    def steps_an_epoch(self) -> int:
        return -(-len(self._lessons.hidden) // ROWS)

    def run(self, progress: Callable[[], float], after_step: Callable[[float], None] = lambda _: None) -> None:
        """Step until `progress()` (0 at the start, 1 at the end) is 1; after_step gets each step's loss in nats."""
        batches = self._batches()
        while (part := progress()) < 1:
            rate = LEARNING_RATE * min(1.0, (self.steps + 1) / _WARM_UP) * (0.02 + 0.98 * (1 + math.cos(math.pi * part)) / 2)
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            after_step(self._step(next(batches)))

    def state(self) -> dict[str, Tensor]:
        """What a later run needs to go on."""
        state = {f"head.{name}": tensor.detach() for name, tensor in self.head.named_parameters()}
        for name, parameter in self.head.named_parameters():
            memory = self._optimiser.state[parameter]
            for moment in ("exp_avg", "exp_avg_sq"):
                state[f"{moment}.{name}"] = memory.get(moment, torch.zeros_like(parameter))
        return {**state, "steps": torch.tensor(float(self.steps))}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.steps = int(state["steps"])
        with torch.no_grad():
            for name, parameter in self.head.named_parameters():
                parameter.copy_(state[f"head.{name}"])
                moments = {moment: state[f"{moment}.{name}"].clone() for moment in ("exp_avg", "exp_avg_sq")}
                self._optimiser.state[parameter] = {**moments, "step": state["steps"].clone()}

    def _step(self, rows: Tensor) -> float:
        lessons = self._lessons
        loss = self.head.loss(lessons.hidden[rows], lessons.likely[rows], lessons.probabilities[rows])
        self._optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), _CLIP)
        self._optimiser.step()
        self.steps += 1
        return float(loss.detach())

    def _batches(self) -> Iterator[Tensor]:
        """Rows without end, each once an epoch, from where `steps` says."""
        done = epoch = 0
        while True:
            order = torch.randperm(len(self._lessons.hidden), generator=torch.Generator().manual_seed(self._seed * 1_000_003 + epoch))
            for batch in order.split(ROWS):
                done += 1
                if done > self.steps:
                    yield batch
            epoch += 1
