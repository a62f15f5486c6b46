"""The cost model of speculative decoding (M3): when it pays, and with how many drafted tokens.

Source of the formulas: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding"
(2023), equation 1 and theorem 3.8, with measured step times in place of the paper's cost coefficient c.
`acceptance` is the chance in 0..1 that a drafted token is kept, taken as independent of its place in the draft.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

BISECTIONS = 60  # halvings of [0, 1]: below double precision


@dataclass(frozen=True)
class StepTimes:
    """Seconds (any one unit will do) of a plain target step, of one draft step, and of the pass that checks a draft."""

    plain: float
    draft: float
    verify: float

    def __post_init__(self) -> None:
        if self.plain <= 0 or self.verify <= 0 or self.draft < 0:
            raise ValueError(f"step times must be positive (a draft may cost nothing), got {self}")


@dataclass(frozen=True)
class Prediction:
    """Times in the unit of the StepTimes. `break_even` is None when no acceptance makes K drafted tokens pay."""

    acceptance: float
    draft_tokens: int  # K
    tokens_per_round: float
    round_time: float
    time_per_token: float
    speed_up: float
    break_even: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Tokens of a round, the bonus or resampled one included: (1 - a^(K+1)) / (1 - a), which is K + 1 at a = 1.

    Leviathan et al. 2023, equation 1. Raises ValueError outside 0 <= a <= 1 or K >= 0.
    """
    if not 0.0 <= acceptance <= 1.0 or draft_tokens < 0:
        raise ValueError(f"acceptance must be in 0..1 and K at least 0, got {acceptance} and {draft_tokens}")
    # the geometric sum term by term: no division that loses digits as a nears 1
    return sum(acceptance**kept for kept in range(draft_tokens + 1))


def round_time(times: StepTimes, draft_tokens: int) -> float:
    """K draft steps and one verify pass; without a draft, a plain step."""
    return draft_tokens * times.draft + times.verify if draft_tokens else times.plain


def speed_up(times: StepTimes, acceptance: float, draft_tokens: int) -> float:
    """Plain time per token over speculative time per token; below 1 speculation hurts."""
    return times.plain * expected_tokens(acceptance, draft_tokens) / round_time(times, draft_tokens)


def break_even(times: StepTimes, draft_tokens: int) -> float | None:
    """The acceptance at which a round of K costs what plain decoding of its tokens costs.

    0.0 when it pays even if every token is refused, None when it never pays. Expected tokens rise with acceptance,
    so bisection finds the one crossing.
    """
    if speed_up(times, 0.0, draft_tokens) >= 1.0:
        return 0.0
    if speed_up(times, 1.0, draft_tokens) < 1.0:
        return None
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if speed_up(times, middle, draft_tokens) >= 1.0 else (middle, high)
    return high


def best_draft_length(times: Callable[[int], StepTimes], acceptance: float, max_draft_tokens: int) -> int:
    """K in 0..max that is fastest; `times(K)` because a verify pass of more rows may cost more. Ties go to the smaller K."""
    return max(range(max_draft_tokens + 1), key=lambda k: (speed_up(times(k), acceptance, k), -k))


def predict(times: StepTimes, acceptance: float, draft_tokens: int) -> Prediction:
    tokens, spent = expected_tokens(acceptance, draft_tokens), round_time(times, draft_tokens)
    return Prediction(
        acceptance=acceptance,
        draft_tokens=draft_tokens,
        tokens_per_round=tokens,
        round_time=spent,
        time_per_token=spent / tokens,
        speed_up=speed_up(times, acceptance, draft_tokens),
        break_even=break_even(times, draft_tokens),
    )


def byte_bound_times(target_bytes: int, draft_bytes: int) -> StepTimes:
    """Step times in units of a plain step, if reading weights were all that costs: the decode roofline of small batches.

    A verify pass reads what a plain step reads. Real steps also compute, so measured break-even lies higher.
    """
    return StepTimes(plain=1.0, draft=draft_bytes / target_bytes, verify=1.0)
