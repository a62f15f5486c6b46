"""Systematic drift: do optimised answers differ from plain ones in a direction, whatever single tokens do?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from builder.quality.arms import Arm, Graded
from builder.quality.statistics import Interval, paired_bootstrap

MEASURES: dict[str, tuple[str, Callable[[Graded], float]]] = {
    "length": ("relative", lambda answer: len(answer.token_ids)),
    "refusal_rate": ("absolute", lambda answer: float(answer.declined)),
    "repetition": ("absolute", lambda answer: answer.repetition),
    "perplexity": ("relative", lambda answer: math.exp(min(answer.nll, 50.0))),
}


@dataclass(frozen=True)
class Drift:
    """`change` is of the mean over prompts: relative to the plain mean, or absolute for shares."""

    name: str
    kind: str
    plain: float
    optimised: float
    change: Interval

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_drift(plain: Arm, optimised: Arm) -> list[Drift]:
    found = []
    for name, (kind, value) in MEASURES.items():
        before, after = ([value(answer) for answer in arm.answers] for arm in (plain, optimised))
        means = sum(before) / len(before), sum(after) / len(after)
        change = paired_bootstrap(before, after)
        if kind == "relative" and means[0]:
            change = Interval(*(part / means[0] for part in (change.mean, change.low, change.high)))
        found.append(Drift(name, kind, *means, change))
    return found
