"""A machine and its traffic, simulated: what a round costs, which drafts are kept, and what the clock says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from builder.decoding.control import ControlSettings, Governor, Member, SamplingClass, State, Transition
from builder.runtime.speculation import record, record_draft
from builder.runtime.step_costs import StepCosts

Acceptance = Callable[[float, Member], float]  # (seconds, sequence) -> chance that a drafted token is kept
K = 4


@dataclass(frozen=True)
class Machine:
    """Seconds of a pass by rows; `row` is what each row adds to a target pass, as a share of its first."""

    plain: float = 0.010
    draft: float = 0.0027
    first: float = 0.0  # what the first step of a draft takes more than the others
    row: float = 0.01
    noise: float = 0.1  # standard deviation of the logarithm of a pass's time
    hiccups: float = 0.002  # share of passes that the machine stalls for 50 ms

    def target(self, rows: int) -> float:
        return self.plain * (1 + self.row * (rows - 1))

    def drafting(self, rows: int) -> float:
        return self.draft * (1 + 2 * self.row * (rows - 1))

    def noisy(self, seconds: float, dice: random.Random) -> float:
        return seconds * dice.lognormvariate(0, self.noise) + (0.05 if dice.random() < self.hiccups else 0.0)


@dataclass
class Run:
    tokens: int = 0
    seconds: float = 0.0
    probing: float = 0.0  # seconds lost in probes
    transitions: list[Transition] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def simulate(
    acceptance: Acceptance,
    seconds: float,
    *,
    fixed: int | None = None,
    batch: Callable[[float], int] = lambda _: 1,
    members: Sequence[Member] = (Member(SamplingClass.GREEDY, "other"),),
    machine: Machine = Machine(),
    repeats: float = 0.0,
    settings: ControlSettings | None = None,
    seed: int = 0,
) -> Run:
    """Decode for so long with the governor, or always with K = `fixed`. `batch(t)` sequences of each member run at time t; at a share
    `repeats` of the steps a text repeats itself, and its draft may be copied."""
    dice, costs, run = random.Random(seed), StepCosts(), Run()
    governor = Governor(settings or ControlSettings(), costs)
    now = 0.0
    while now < seconds:
        running = [replace(member, copies=dice.random() < repeats) for member in members for _ in range(batch(now))]
        lengths = [fixed] * len(running) if fixed is not None else governor.lengths(now, running, 0)
        # a fixed K copies wherever it can
        running = [replace(member, copies=member.copies and (fixed is not None or governor.may_copy(member))) for member in running]
        made = [length for member, length in zip(running, lengths, strict=True) if length and not member.copies]
        spent = machine.first if made else 0.0
        for step in range(max(made, default=0)):
            spent += machine.noisy(machine.drafting(sum(length > step for length in made)), dice)
        if made:
            record_draft(costs, len(made), max(made), spent)
        rows = len(running) + sum(lengths)
        passed = machine.noisy(machine.target(rows), dice)
        record(costs, "target", rows, passed)
        won = 0
        for member, length in zip(running, lengths, strict=True):
            kept = 0
            while kept < length and dice.random() < acceptance(now, member):
                kept += 1
            won += kept + 1
            if length and fixed is None:
                governor.round_done(member, length, length, kept)
        if fixed is None:
            governor.step_done(spent + passed, won)
            if governor.state is State.PROBING:
                run.probing += max(0.0, spent + passed - won * machine.target(len(running)) / len(running))
        now += spent + passed
        run.tokens += won
        run.transitions += governor.take_transitions()  # as a server does, again and again
    run.seconds = now
    return run


def best_fixed(acceptance: Acceptance, seconds: float, **options: object) -> float:
    """Tokens per second of the best K in hindsight."""
    return max(simulate(acceptance, seconds, fixed=k, **options).speed for k in range(K + 1))  # type: ignore[arg-type]
