"""What one answer was made of: its decode steps with tokens, seconds and passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from builder.bench.pass_timer import PassTimer
from builder.runtime.observer import SilentObserver
from builder.runtime.request import Output, Request

SHORTEST = 32  # tokens; an answer that ends sooner is timed to this length, since a handful of steps says little


@dataclass(frozen=True)
class Step:
    """One iteration of the loop at one stream. Seconds are from the emission of the step before."""

    tokens: int
    seconds: float
    drafted: int = 0
    accepted: int = 0
    draft_passes: int = 0
    draft_seconds: float = 0.0  # in the draft's passes
    target_seconds: float = 0.0  # in the target's pass

    @property
    def overhead(self) -> float:
        """Seconds outside all passes: scheduling, building rows, sampling, delivery."""
        return self.seconds - self.draft_seconds - self.target_seconds


class StepLog(SilentObserver):
    """Observer of a loop that serves one request at a time; makes a Step of each emission after the first."""

    def __init__(self, target: PassTimer, draft: PassTimer) -> None:
        self._target = target
        self._draft = draft
        self.clear()

    def clear(self) -> None:
        self.steps: list[Step] = []
        self.time_to_first_token = 0.0  # seconds from arrival
        self.exit_layers: Mapping[int, int] = {}
        self._round = (0, 0)
        self._take_passes()

    def round_done(self, drafted: int, accepted: int) -> None:
        self._round = drafted, accepted

    def first_token(self, request: Request, seconds: float) -> None:  # noqa: ARG002 - the interface's names
        self.time_to_first_token = seconds
        self._take_passes()  # prefill belongs to no step

    def finished(self, request: Request, output: Output, seconds: float) -> None:  # noqa: ARG002
        if output.stats is not None:
            self.exit_layers = output.stats.exit_layers

    def tokens_emitted(self, request: Request, count: int, seconds_since_last: float | None) -> None:  # noqa: ARG002
        if seconds_since_last is None:
            return
        (drafted, accepted), self._round = self._round, (0, 0)
        target, draft = self._take_passes()
        draft_seconds, target_seconds = sum(draft), sum(target)
        self.steps.append(Step(count, seconds_since_last, drafted, accepted, len(draft), draft_seconds, target_seconds))

    def _take_passes(self) -> tuple[list[float], list[float]]:
        return [seconds for _, seconds in self._target.take()], [seconds for _, seconds in self._draft.take()]


@dataclass(frozen=True)
class Answer:
    """A whole answer. Its timed part ends where the model ended it (`natural_length`), but not before SHORTEST tokens."""

    token_ids: tuple[int, ...]
    steps: tuple[Step, ...]  # after the first token
    time_to_first_token: float  # seconds
    natural_length: int
    exit_layers: Mapping[int, int] = field(default_factory=dict)  # layers run -> tokens; empty without early exit

    @property
    def timed_steps(self) -> tuple[Step, ...]:
        wanted = max(self.natural_length, SHORTEST)
        tokens, kept = 1, 0
        while kept < len(self.steps) and tokens < wanted:
            tokens += self.steps[kept].tokens
            kept += 1
        return self.steps[:kept]

    @property
    def tokens_per_second(self) -> float:
        """Decode speed from the first token to the last timed one."""
        return rate(self.timed_steps)

    @property
    def whole_tokens_per_second(self) -> float:
        return rate(self.steps)


def rate(steps: Sequence[Step]) -> float:
    """Tokens per second; 0.0 without steps."""
    seconds = sum(step.seconds for step in steps)
    return sum(step.tokens for step in steps) / seconds if seconds else 0.0
