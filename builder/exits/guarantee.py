"""Thresholds with their guarantee, and what held-out answers show of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from builder.decoding.exits.confidence import MEASURES
from builder.decoding.exits.learn_then_test import Choice, candidates, choose
from builder.decoding.exits.rule import FULL, Answers, exits, losses
from builder.decoding.exits.separation import auroc, reliability
from builder.exits.passages import ANSWER_TOKENS, Part
from builder.exits.scores import Scores


@dataclass(frozen=True)
class Bound:
    """What is asked for: see quality.max_disagreement, quality.confidence and early_exit.max_pending."""

    max_disagreement: float
    confidence: float
    max_pending: int


@dataclass(frozen=True)
class HeldOut:
    """Of answers that nothing was chosen by. `of_exits` is the share of tokens that left which differ."""

    answers: int
    tokens: int
    disagreement: float
    of_exits: float
    shares: tuple[float, ...]  # of tokens that leave, by exit layer
    average_layers: float


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
            f"{ANSWER_TOKENS} tokens to prompts like those, with these weights, tokenizer and heads. It is agreement with the full model, "
            "not truth, and says nothing of how answers go on after a token that differs."
        )

    def to_json(self) -> dict[str, Any]:
        fields = {
            name: value for name, value in asdict(self).items() if name not in ("layers", "thresholds", "before", "after", "separation")
        }
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


def calibrate(scores: Scores, layers: tuple[int, ...], depth: int, bound: Bound) -> Calibration:
    """The measure that separates right from wrong best, the thresholds that keep to `bound`, and what they do on held-out answers."""
    separation = {measure: _separation(scores.answers(measure, Part.CHOOSE)) for measure in MEASURES}
    measure = max(separation, key=lambda name: float(np.mean(separation[name])))
    tested = scores.answers(measure, Part.TEST)
    choice = choose(tested, candidates(scores.answers(measure, Part.CHOOSE)), bound.max_disagreement, bound.confidence, bound.max_pending)
    thresholds = choice.thresholds if choice else (np.inf,) * len(layers)
    held_out = scores.answers(measure, Part.HELD_OUT)
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
        reliability=[[asdict(point) for point in _reliability(held_out, place)] for place in range(len(layers))],
        tested=len(tested.lengths),
        held_out=_look(held_out, np.array(thresholds), layers, depth, bound.max_pending),
    )


def _separation(answers: Answers) -> list[float]:
    return [auroc(answers.confidence[:, place], answers.right[:, place]) for place in range(answers.right.shape[1])]


def _reliability(answers: Answers, place: int) -> list[Any]:
    return reliability(answers.confidence[:, place], answers.right[:, place])


def _look(
    answers: Answers, thresholds: np.ndarray[Any, np.dtype[np.float64]], layers: tuple[int, ...], depth: int, pending: int
) -> HeldOut:
    left = exits(answers, thresholds, pending)
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
    )
