"""Thresholds with their guarantee, and what held-out answers show of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builder.decoding.exits.confidence import MEASURES
from builder.decoding.exits.costs import Costs, time_a_token
from builder.decoding.exits.learn_then_test import NEVER, Choice, candidates, choose
from builder.decoding.exits.rule import FULL, Answers, ExitLimits, asked, exits, losses
from builder.decoding.exits.separation import auroc, reliability
from builder.exits.passages import ANSWER_TOKENS, Part
from builder.exits.scores import Scores


@dataclass(frozen=True)
class Bound:
    """What is asked for: see quality.max_disagreement and quality.confidence, early_exit.max_pending and early_exit.protected_tokens."""

    max_disagreement: float
    confidence: float
    max_pending: int
    protected_tokens: int

    @property
    def limits(self) -> ExitLimits:
        return ExitLimits(self.max_pending, self.protected_tokens)


@dataclass(frozen=True)
class HeldOut:
    """Of answers that nothing was chosen by. `of_exits` is the share of tokens that left which differ, the speed-up is by weights read."""

    answers: int
    tokens: int
    disagreement: float
    of_exits: float
    shares: tuple[float, ...]  # of tokens that leave, by exit layer
    average_layers: float
    predicted_speedup: float


@dataclass(frozen=True)
class Calibration:
    """`thresholds` by layer, None where nothing leaves; all None when no thresholds keep to the bound."""

    layers: tuple[int, ...]
    depth: int
    measure: str
    thresholds: tuple[float | None, ...]
    bound: Bound
    choice: Choice | None
    separation: dict[str, list[float]]  # measure -> AUROC by layer
    before: tuple[float, ...]  # agreement with the full model, by layer, of the raw state; on held-out answers
    after: tuple[float, ...]  # and of the trained head
    reliability: list[list[dict[str, float]]]  # by layer, of the chosen measure
    tested: int  # answers
    held_out: HeldOut
    made_with: str = "weights, tokenizer and heads"

    @property
    def guarantee(self) -> str:
        most, sure = f"{self.bound.max_disagreement:.2%}", f"{self.bound.confidence:.0%}"
        if self.choice is None:
            return (
                f"No thresholds were found that keep disagreement with the full model within {most} with {sure} confidence, "
                f"tested on {self.tested} answers: early exit stays off."
            )
        return (
            f"With {sure} confidence, at most {most} of an answer's tokens, on average over answers, differ from what the full model would "
            f"have said at the same place. Tested on {self.tested} answers; it holds for greedy answers (temperature 0) of up to "
            f"{ANSWER_TOKENS} tokens to prompts like those, with these {self.made_with}. It is agreement with the full model, "
            "not truth, and says nothing of how answers go on after a token that differs."
        )

    def to_json(self) -> dict[str, Any]:
        told_otherwise = ("layers", "thresholds", "before", "after", "separation", "made_with")
        fields = {name: value for name, value in asdict(self).items() if name not in told_otherwise}
        if self.choice is not None:
            fields["choice"] |= {"thresholds": self.thresholds}  # JSON has no infinity
        rows = zip(self.layers, self.thresholds, self.before, self.after, self.held_out.shares, strict=True)
        layers = [
            {
                "layer": layer,
                "threshold": threshold,
                "agreement_before": round(before, 4),
                "agreement_after": round(after, 4),
                "auroc": {measure: round(found[place], 4) for measure, found in self.separation.items()},
                "exit_share": round(share, 4),
            }
            for place, (layer, threshold, before, after, share) in enumerate(rows)
        ]
        return {"layers": layers, "guarantee": self.guarantee, "temperature": 0.0, **fields}


def calibrate(scores: Scores, layers: tuple[int, ...], depth: int, bound: Bound, costs: Sequence[Costs], *, keep_all: bool) -> Calibration:
    """The measure that separates right from wrong best, the thresholds that keep to `bound`, and what they do on held-out answers.

    `keep_all`: tokens leave at all `layers` where thresholds allow it; else at those of them that save most by their `costs`.
    """
    separation = {measure: separations(scores.answers(measure, Part.CHOOSE)) for measure in MEASURES}
    measure = max(separation, key=lambda name: float(np.mean(separation[name])))
    tested = scores.answers(measure, Part.TEST)
    learned = scores.answers(measure, Part.CHOOSE)
    chances = candidates(learned) if keep_all else _of_layers_that_pay(learned, bound, costs)
    choice = choose(tested, chances, bound.max_disagreement, bound.confidence, bound.limits, ANSWER_TOKENS)
    thresholds = choice.thresholds if choice else (np.inf,) * len(layers)
    held_out = scores.answers(measure, Part.HELD_OUT)
    left = exits(held_out, np.array(thresholds), bound.limits)
    looked_at = asked(left, held_out.lengths, bound.limits)
    time = time_a_token(left, looked_at, np.isfinite(thresholds).tolist(), costs)
    before, after = scores.agreement(Part.HELD_OUT)
    return Calibration(
        layers=layers,
        depth=depth,
        measure=measure,
        thresholds=tuple(threshold if np.isfinite(threshold) else None for threshold in thresholds),
        bound=bound,
        choice=choice,
        separation=separation,
        before=tuple(before),
        after=tuple(after),
        reliability=reliabilities(held_out),
        tested=len(tested.lengths),
        held_out=look(held_out, left, layers, depth, 1 / time),
    )


def _of_layers_that_pay(learned: Answers, bound: Bound, costs: Sequence[Costs]) -> NDArray[np.float64]:
    """The candidates of that set of layers with which tokens take least time on `learned`, where what differs there is within the bound.
    The answers that are tested have no part in it."""
    everywhere, found = candidates(learned), []
    for used in itertools.product((True, False), repeat=len(costs)):
        thresholds = np.where(used, everywhere, NEVER)
        thresholds = thresholds[np.isfinite(thresholds).any(axis=1)]
        left = [exits(learned, row, bound.limits) for row in thresholds]
        within = [chosen for chosen in left if losses(learned, chosen).mean() <= bound.max_disagreement]
        if within:
            looked_at = asked(within[-1], learned.lengths, bound.limits)
            found.append((time_a_token(within[-1], looked_at, used, costs), thresholds))
    return min(found, key=lambda each: each[0])[1] if found else everywhere


def separations(answers: Answers) -> list[float]:
    """AUROC by layer."""
    return [auroc(answers.confidence[:, place], answers.right[:, place]) for place in range(answers.right.shape[1])]


def reliabilities(answers: Answers) -> list[list[dict[str, float]]]:
    """Points of the reliability diagram, by layer."""
    columns = range(answers.right.shape[1])
    return [[asdict(point) for point in reliability(answers.confidence[:, place], answers.right[:, place])] for place in columns]


def look(answers: Answers, left: NDArray[np.int64], layers: tuple[int, ...], depth: int, speedup: float) -> HeldOut:
    """What `left` [tokens], the place in `layers` each token leaves at or FULL, comes to."""
    gone = left != FULL
    wrong = gone & ~np.take_along_axis(answers.right, np.maximum(left, 0)[:, None], axis=1)[:, 0]
    ran = np.where(gone, np.array(layers)[left], depth)
    return HeldOut(
        answers=len(answers.lengths),
        tokens=len(left),
        disagreement=float(losses(answers, left).mean()),
        of_exits=float(wrong.sum() / max(1, gone.sum())),
        shares=tuple(float((left == place).mean()) for place in range(len(layers))),
        average_layers=float(ran.mean()),
        predicted_speedup=speedup,
    )
