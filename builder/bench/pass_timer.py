"""Times the passes of a runner from inside the decode loop, so that what a step costs beside them can be told apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from builder.decoding.stopping import StopRule
from builder.runtime.exits import ExitPoint
from builder.runtime.runner import ExitRunner, GreedyRunner, Rows, Runner
from builder.weights.config import ModelConfig


@dataclass
class PassTimer:
    """(rows, seconds) of each pass since the last `take`. A pass is embed, layers and head."""

    passes: list[tuple[int, float]] = field(default_factory=list)

    def begin(self, rows: int) -> None:
        self.passes.append((rows, 0.0))

    def add(self, seconds: float) -> None:
        rows, before = self.passes[-1]
        self.passes[-1] = rows, before + seconds

    def take(self) -> list[tuple[int, float]]:
        taken, self.passes = self.passes, []
        return taken


class TimedRunner:
    """A Runner that tells a PassTimer how long each pass took; about a microsecond a call is added."""

    def __init__(self, runner: Runner, timer: PassTimer) -> None:
        self.config: ModelConfig = runner.config
        self._runner = runner
        self._timer = timer

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        self._runner.allocate_cache(num_blocks, block_size)

    def cache_bytes_per_block(self, block_size: int) -> int:
        return self._runner.cache_bytes_per_block(block_size)

    def embed(self, rows: Rows) -> torch.Tensor:
        self._timer.begin(len(rows.token_ids))
        began = time.perf_counter()
        hidden = self._runner.embed(rows)
        self._timer.add(time.perf_counter() - began)
        return hidden

    def layers(self, hidden: torch.Tensor, rows: Rows, start: int, stop: int) -> torch.Tensor:
        began = time.perf_counter()
        hidden = self._runner.layers(hidden, rows, start, stop)
        self._timer.add(time.perf_counter() - began)
        return hidden

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        logits = self._runner.head(hidden)
        self._timer.add(time.perf_counter() - began)
        return logits


class TimedGreedyRunner(TimedRunner):
    """The same over a GreedyRunner."""

    def __init__(self, runner: GreedyRunner, timer: PassTimer) -> None:
        super().__init__(runner, timer)
        self._greedy = runner

    def greedy(self, hidden: torch.Tensor) -> list[int]:
        began = time.perf_counter()
        tokens = self._greedy.greedy(hidden)
        self._timer.add(time.perf_counter() - began)
        return tokens

    def continue_greedily(self, rows: Rows, lengths: torch.Tensor, stop: StopRule | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The passes of one draft, each counted with an equal share of its time."""
        began = time.perf_counter()
        drafted, confidences = self._greedy.continue_greedily(rows, lengths, stop)
        passes = int((drafted >= 0).any(0).sum())
        share = (time.perf_counter() - began) / max(1, passes)
        for _ in range(passes):
            self._timer.begin(len(rows.token_ids))
            self._timer.add(share)
        return drafted, confidences


class TimedExitRunner(TimedGreedyRunner):
    """The same over an ExitRunner. `exit_drafts` is told of the passes that draft by the runner's own first layers."""

    def __init__(self, runner: ExitRunner, timer: PassTimer, exit_drafts: PassTimer) -> None:
        super().__init__(runner, timer)
        self._exits = runner
        self._exit_drafts = exit_drafts

    def to_exit(
        self, hidden: torch.Tensor, rows: Rows, start: int, stop: int, asked: Sequence[int], points: Sequence[ExitPoint]
    ) -> tuple[int, list[int], list[float]]:
        began = time.perf_counter()
        found = self._exits.to_exit(hidden, rows, start, stop, asked, points)
        self._timer.add(time.perf_counter() - began)
        return found

    def draft_to_exit(self, rows: Rows, lengths: torch.Tensor, point: ExitPoint) -> tuple[torch.Tensor, torch.Tensor]:
        """A pass for each sequence's last token, which plain decoding has too, and one for each drafted token; all count alike."""
        began = time.perf_counter()
        drafted, states = self._exits.draft_to_exit(rows, lengths, point)
        passes = 1 + int((drafted >= 0).any(0).sum())
        share = (time.perf_counter() - began) / passes
        for timer in (self._timer, *[self._exit_drafts] * (passes - 1)):
            timer.begin(len(rows.token_ids))
            timer.add(share)
        return drafted, states


def timed(runner: Runner, timer: PassTimer, exit_drafts: PassTimer | None = None) -> TimedRunner:
    """`exit_drafts`: where drafts by the runner's own first layers are counted; with the others unless given."""
    if isinstance(runner, ExitRunner):
        return TimedExitRunner(runner, timer, exit_drafts or timer)
    return TimedGreedyRunner(runner, timer) if isinstance(runner, GreedyRunner) else TimedRunner(runner, timer)
