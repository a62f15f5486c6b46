"""Greedy tokens, plain against speculative, prompt by prompt (M15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from builder.quality.arms import Arm, fitting
from builder.quality.cases import Case
from builder.quality.scoring import next_token_logits
from builder.quality.subject import Subject

TIE_RULE = "the lowest id of equal logits is taken, plainly and speculatively"


@dataclass(frozen=True)
class Difference:
    """Where two greedy answers part, and how close the decision was there: the target's two largest logits."""

    case: str
    position: int  # in the answer, from 0
    plain: int | None  # token id; None where that answer had ended
    speculative: int | None
    best: int
    second: int
    best_logit: float
    second_logit: float

    @property
    def tie(self) -> bool:
        return self.best_logit == self.second_logit

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"gap": self.best_logit - self.second_logit, "tie": self.tie, "tie_rule": TIE_RULE}


def differences(subject: Subject, cases: Sequence[Case], plain: Arm, speculative: Arm) -> list[Difference]:
    """The first difference of each case that has one. Overwrites the KV cache."""
    found = []
    for case, a, b in zip(cases, plain.answers, speculative.answers, strict=True):
        if a.token_ids != b.token_ids:
            found.append(_first(subject, case, a.token_ids, b.token_ids))
    return found


def _first(subject: Subject, case: Case, plain: tuple[int, ...], other: tuple[int, ...]) -> Difference:
    shorter = min(len(plain), len(other))
    place = next((at for at in range(shorter) if plain[at] != other[at]), shorter)
    seen = [*fitting(subject, case)[0], *plain[:place]]
    logits = next_token_logits(subject, seen, len(seen) - 1)[0]
    values, ids = logits.topk(2)
    return Difference(
        case.id,
        place,
        plain[place] if place < len(plain) else None,
        other[place] if place < len(other) else None,
        int(ids[0]),
        int(ids[1]),
        float(values[0]),
        float(values[1]),
    )
