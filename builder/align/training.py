"""Gradient steps that bring the draft's next-token distribution to the target's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from builder.align.corpus import Sample
from builder.align.functions import Imitation
from builder.align.matrices import Learnable
from builder.align.student import View, decode, head, normed
from builder.align.teacher import Batch, Teacher, collate
from builder.weights.config import ModelConfig

ROWS = 512  # positions of a step: more would mean fewer steps, fewer that making the weights costs more than the products
PORTION = 512  # positions run at once (in portions of 256 the same rows take half as long again); the clock is looked at after each
LEARNING_RATE = 4e-3  # of relative changes: a scale moves by about this share a step at first
_WARM_UP = 5  # steps
_CLIP = 1.0


class Training:
    """AdamW over the draft's scales, minimums and norms. `steps` done so far; the order of samples follows from the seed and it."""

    def __init__(
        self,
        draft: Learnable,
        config: ModelConfig,
        embedding: Tensor,
        teacher: Teacher,
        samples: Sequence[Sample],
        *,
        shared: bool,
        round_length: int,
        seed: int,
    ) -> None:
        self.draft = draft
        self.steps = 0
        self._config = config
        self._embedding = embedding
        self._teacher = teacher
        self._samples = samples
        self._shared = shared
        self._round_length = round_length
        self._seed = seed
        self._optimiser = torch.optim.AdamW([draft.parameters], lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)

    def run(self, progress: Callable[[], float], after_step: Callable[[float], None] = lambda _: None) -> None:
        """Step until `progress()` (0 at the start, 1 at the end, of time or of steps) is 1; after_step gets each step's loss."""
        batches = self._batches()
        while (part := progress()) < 1:
            rate = LEARNING_RATE * min(1.0, (self.steps + 1) / _WARM_UP) * (0.02 + 0.98 * (1 + math.cos(math.pi * part)) / 2)
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            after_step(self._step(next(batches), lambda: progress() >= 1))

    def state(self) -> dict[str, Tensor]:
        """What a later run needs to go on: parameters, both moments, steps."""
        memory = self._optimiser.state[self.draft.parameters]
        parameters = self.draft.parameters.detach()
        return {
            "parameters": parameters,
            "first_moment": memory.get("exp_avg", torch.zeros_like(parameters)),
            "second_moment": memory.get("exp_avg_sq", torch.zeros_like(parameters)),
            "steps": torch.tensor(float(self.steps)),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            self.draft.parameters.copy_(state["parameters"])
        self.steps = int(state["steps"])
        if self.steps:
            moments = {"exp_avg": state["first_moment"], "exp_avg_sq": state["second_moment"], "step": state["steps"]}
            self._optimiser.state[self.draft.parameters] = {name: tensor.clone() for name, tensor in moments.items()}

    def loss(self, batch: Batch, offset: int) -> Tensor:
        """Mean cross-entropy to the target's most likely tokens, in nats."""
        batch_size, rows = batch.ids.shape
        window = self._config.sliding_window
        if batch.given is None:
            view = View.causal(batch_size, rows, window)
        else:
            view = View.rounds(batch.first, rows, batch.given[0][0].shape[1], self._round_length, offset, window)
        hidden, _ = decode(self.draft, self._config, self._embedding[batch.ids], batch.first, view, batch.given)
        x = normed(self.draft, self._config, hidden[batch.taught])
        total: Tensor = Imitation.apply(x, head(self.draft, self._config), batch.likely, batch.probabilities)  # type: ignore[no-untyped-call]
        return total / len(x)

    def _step(self, samples: Sequence[Sample], over: Callable[[], bool] = lambda: False) -> float:
        """One step on all samples, or on the portions done when `over()`: at least the first."""
        self.draft.refresh()
        rows, total = 0, 0.0
        for portion in _portions(samples, PORTION):
            batch = collate(self._teacher.lessons(portion), shared=self._shared)
            loss = self.loss(batch, offset=self.steps % self._round_length) * len(batch.likely)
            loss.backward()
            rows += len(batch.likely)
            total += float(loss.detach())
            if over():
                break
        self.draft.collect(1 / rows)
        torch.nn.utils.clip_grad_norm_([self.draft.parameters], _CLIP)
        self._optimiser.step()
        self.steps += 1
        return total / rows

    def _batches(self) -> Iterator[list[Sample]]:
        """Mini-batches of about ROWS rows without end, every sample once an epoch, from where `steps` says."""
        done = 0
        epoch = 0
        while True:
            order = torch.randperm(len(self._samples), generator=torch.Generator().manual_seed(self._seed * 1_000_003 + epoch))
            for batch in _portions([self._samples[index] for index in order.tolist()], ROWS):
                done += 1
                if done > self.steps:
                    yield batch
            epoch += 1


def _portions(samples: Sequence[Sample], rows: int) -> Iterator[list[Sample]]:
    """The samples in turn, in groups of at least `rows` rows but for the last."""
    portion: list[Sample] = []
    for sample in samples:
        portion.append(sample)
        if sum(each.rows for each in portion) >= rows:
            yield portion
            portion = []
    if portion:
        yield portion
