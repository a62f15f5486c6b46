"""What serving knows of a pipeline's early exit: where tokens may leave, how sure a head must be, and for whom it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from torch import Tensor

from builder.decoding.exits.rule import ExitLimits
from builder.decoding.params import SamplingParams


class ExitHead(Protocol):
    def say(self, hidden: Tensor, measure: Callable[[Tensor], Tensor]) -> tuple[list[int], list[float]]:
        """The most probable token after each row of hidden [rows, hidden_size], and how sure of it the head is by `measure`.

        A row whose token the head does not know has confidence 0.
        """
        ...

    def speak(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [rows, V], -inf for tokens the head does not know; and the probability [rows] of the likeliest, 0 where that is one
        the head does not know."""
        ...


@dataclass(frozen=True)
class ExitPoint:
    """After `layer` layers a token leaves whose confidence is at least `threshold`."""

    layer: int
    head: ExitHead
    threshold: float


@dataclass(frozen=True)
class Exits:
    """`points` ascend by layer. `temperature` is what the thresholds were calibrated at: they say nothing of another."""

    points: tuple[ExitPoint, ...]
    measure: Callable[[Tensor], Tensor]
    limits: ExitLimits
    temperature: float = 0.0


class Calibrated(Protocol):
    """Thresholds, of whatever kind."""

    @property
    def temperature(self) -> float:
        """What they were calibrated at."""
        ...


class ExitState(StrEnum):
    """Why tokens of a request may leave early, or not."""

    NONE = "none"  # the pipeline has no early exit
    ON = "on"
    DECLINED = "declined"  # by the request
    OPERATOR = "operator"  # by a flag
    TEMPERATURE = "temperature"  # not the one that was calibrated
    SAMPLING = "sampling"  # a penalty, or log-probabilities: only the full model has them


def exit_state(sampling: SamplingParams, exits: Calibrated | None, *, asked: bool, allowed: bool) -> ExitState:
    """`asked` is what the request wants, `allowed` what its operator lets it."""
    if exits is None:
        return ExitState.NONE
    if not asked:
        return ExitState.DECLINED
    if not allowed:
        return ExitState.OPERATOR
    if sampling.temperature != exits.temperature:
        return ExitState.TEMPERATURE
    if sampling.repetition_penalty != 1.0 or sampling.logprobs is not None:
        return ExitState.SAMPLING
    return ExitState.ON
