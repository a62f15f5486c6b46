"""When a load test does what: its blocks, and the moments at which open-loop requests are due."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.workload import Stage, Workload

PLAIN, SPECULATIVE, SERVED = "plain", "speculative", "served"
SPECULATION = {PLAIN: "off", SPECULATIVE: "auto", SERVED: None}  # the request parameter of each arm
WARM_UP = "warm-up"
WARM_UP_SECONDS = 3.0


@dataclass(frozen=True)
class Block:
    """Requests of one arm for `seconds`. Blocks with equal `pair` ask the same questions."""

    number: int
    arm: str
    seconds: float
    pair: int

    @property
    def counted(self) -> bool:
        return self.arm != WARM_UP


def blocks(workload: Workload, minutes: float, ab: bool) -> list[Block]:
    """A warm-up, then one block of the arm as served, or pairs of a plain and a speculative block.

    Every second pair is turned round (plain, speculative, speculative, plain), so that a machine that slows down steadily
    hurts both arms alike.
    """
    seconds = minutes * 60
    found = [Block(0, WARM_UP, min(WARM_UP_SECONDS, seconds), 0)]
    if not ab:
        return [*found, Block(1, SERVED, seconds, 1)]
    pairs = max(1, round(seconds / (2 * workload.block)))
    for pair in range(1, pairs + 1):
        arms = (PLAIN, SPECULATIVE) if pair % 2 else (SPECULATIVE, PLAIN)
        found += [Block(2 * pair - 1 + place, arm, seconds / (2 * pairs), pair) for place, arm in enumerate(arms)]
    return found


def stage_times(stages: Sequence[Stage], seconds: float) -> list[tuple[float, float, float]]:
    """(start, end, load) of each stage, seconds from the block's start."""
    total = sum(stage.share for stage in stages)
    found, start = [], 0.0
    for stage in stages:
        end = start + seconds * stage.share / total
        found.append((start, end, stage.load))
        start = end
    return found


def arrivals(workload: Workload, rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
    """Due times of requests, seconds from the block's start; `rate` requests a second at load 1."""
    for start, end, load in stage_times(workload.stages, seconds):
        if not load:
            continue
        gap = 1 / (rate * load)
        due = start + (rng.expovariate(1 / gap) if workload.arrivals == "poisson" else gap * rng.random())
        while due < end:
            yield due
            due += rng.expovariate(1 / gap) if workload.arrivals == "poisson" else gap
