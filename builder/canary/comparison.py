"""Two versions compared: each limit of `versions.canary` by itself.

A limit is broken when the difference is beyond it and chance does not explain that: the versions are looked at every second, and the
first limit that is broken ends the canary. Until there is enough to judge by, the verdict is "open".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy import stats

from builder.canary.arm import Arm
from builder.quality.statistics import Interval, paired_bootstrap
from builder.spec.versions import Canary
from builder.telemetry.quantile import count_above

KEPT, BROKEN, OPEN = "kept", "broken", "open"
CHANCE = 0.001  # of breaking a limit by chance in one look; small, since there are many looks
FEWEST_ANSWERS = 20  # of the live version: of fewer, a 95th percentile says nothing
FEWEST_DRAFTED = 500  # tokens of each version, before their acceptance is compared


@dataclass(frozen=True)
class Comparison:
    """`stable` and `tried` are what the two versions showed, in the unit of the limit."""

    name: str
    verdict: str
    stable: float | None
    tried: float | None
    limit: float

    def to_json(self) -> dict[str, Any]:
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        shown = ("unknown" if value is None else f"{value:.4g}" for value in (self.tried, self.stable))
        return f"{self.name} {next(shown)} against {next(shown)} (limit {self.limit:g}): {self.verdict}"


def compare(stable: Arm, tried: Arm, limits: Canary) -> tuple[Comparison, ...]:
    return _errors(stable, tried, limits.max_error_increase), _p95(stable, tried, limits.max_p95_ratio), _acceptance(stable, tried, limits)


def compare_success(stable: Sequence[bool], tried: Sequence[bool], limit: float) -> Comparison:
    """Right answers of both versions to the same prompts, in the same order (paired bootstrap, 95 %)."""
    change = paired_bootstrap([float(right) for right in stable], [float(right) for right in tried])
    before, after = (sum(right) / len(right) if right else None for right in (stable, tried))
    return Comparison("success drop", BROKEN if _is_loss(change, limit) else KEPT, before, after, limit)


def _is_loss(change: Interval, limit: float) -> bool:
    return change.mean < 0 and change.beyond(limit)


def _errors(stable: Arm, tried: Arm, limit: float) -> Comparison:
    """Fisher's exact test on failed and answered requests."""
    if not stable.requests or not tried.requests:
        return Comparison("error increase", OPEN, stable.error_rate, tried.error_rate, limit)
    table = [[round(arm.failed), round(arm.answered)] for arm in (tried, stable)]
    broken = tried.error_rate - stable.error_rate > limit and stats.fisher_exact(table, alternative="greater").pvalue < CHANCE
    return Comparison("error increase", BROKEN if broken else KEPT, stable.error_rate, tried.error_rate, limit)


def _p95(stable: Arm, tried: Arm, limit: float) -> Comparison:
    """Were the tried version's p95 at the limit, one answer in twenty would take longer than that: a binomial test on how many do."""
    before, after = stable.p95, tried.p95
    if before is None or after is None or stable.timed < FEWEST_ANSWERS:
        return Comparison("p95 ratio", OPEN, before, after, limit)
    timed, slow = tried.timed, round(count_above(limit * before, tried.seconds))
    broken = after > limit * before and stats.binomtest(slow, timed, 0.05, alternative="greater").pvalue < CHANCE
    return Comparison("p95 ratio", BROKEN if broken else KEPT, before, after, limit)


def _acceptance(stable: Arm, tried: Arm, limits: Canary) -> Comparison:
    """Tokens of one draft are accepted or refused together, so no test of single tokens is right: a fixed number of them must be there."""
    limit, before, after = limits.max_acceptance_drop, stable.acceptance, tried.acceptance
    if before is None or after is None or min(stable.drafted, tried.drafted) < FEWEST_DRAFTED:
        return Comparison("acceptance drop", OPEN, before, after, limit)
    return Comparison("acceptance drop", BROKEN if before - after > limit else KEPT, before, after, limit)
