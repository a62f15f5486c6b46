"""Each gate: what was measured, the limit of pipeline.yaml, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from builder.quality.baseline import AgainstLive
from builder.quality.distribution import Distribution
from builder.quality.drift import Drift
from builder.quality.statistics import Interval
from builder.spec.quality import Quality

PASSED, FAILED, INCONCLUSIVE, NOT_APPLICABLE = "passed", "failed", "inconclusive", "not applicable"
SKIPPED = "skipped"  # of a whole version: somebody asked for no verification


@dataclass(frozen=True)
class Gate:
    name: str
    verdict: str
    value: float | None
    limit: float | None
    says: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def overall(gates: Sequence[Gate]) -> str:
    verdicts = {gate.verdict for gate in gates}
    return FAILED if FAILED in verdicts else INCONCLUSIVE if INCONCLUSIVE in verdicts else PASSED


def identity_gate(identity: float, prompts: int, rounds: int, speculates: bool, limits: Quality) -> Gate:
    """Inconclusive when the engine never drafted: two plain runs prove nothing."""
    says = f"{identity:.2%} of {prompts} prompts have the tokens of plain decoding, {rounds} rounds drafted"
    verdict = PASSED if identity >= limits.min_token_identity else FAILED
    if not speculates:
        verdict = NOT_APPLICABLE
    elif verdict == PASSED and not rounds:
        verdict = INCONCLUSIVE
    return Gate("token_identity", verdict, identity, limits.min_token_identity, says)


def distribution_gate(found: Distribution, limits: Quality) -> Gate:
    if found.note:
        return Gate("distribution", NOT_APPLICABLE, None, limits.significance, found.note)
    caught = "caught" if found.control_caught else "missed"
    says = f"smallest adjusted p-value of {len(found.tests)} tests {found.worst:.3g}; the broken rule was {caught}"
    return Gate("distribution", found.verdict, found.worst, limits.significance, says)


def exit_gate(differing: Interval, early_exit: bool, limits: Quality) -> Gate:
    """Of the served answers' own text, where the calibration looked at the full model's."""
    says = f"{differing.mean:.2%} of an answer's tokens differ from the full model's ({differing.low:.2%} to {differing.high:.2%})"
    verdict = FAILED if differing.low > limits.max_disagreement else PASSED
    return Gate("exit_disagreement", verdict if early_exit else NOT_APPLICABLE, differing.mean, limits.max_disagreement, says)


def success_gate(change: Interval, plain: float, optimised: float, limits: Quality) -> Gate:
    says = f"task success {plain:.1%} plain, {optimised:.1%} optimised, change {_points(change)}"
    return Gate("task_success", _judge_drop(change, limits.max_success_drop), change.mean, -limits.max_success_drop, says)


def live_gate(found: AgainstLive | None, limits: Quality) -> Gate:
    limit = -limits.max_success_drop
    if found is None:
        return Gate("against_live", NOT_APPLICABLE, None, limit, "no live version with a quality report")
    says = (
        f"task success {found.live:.1%} in live version {found.version}, {found.candidate:.1%} now, "
        f"change {_points(found.change)} over {found.cases} prompts"
    )
    return Gate("against_live", _judge_drop(found.change, limits.max_success_drop), found.change.mean, limit, says)


def drift_gate(drifts: Sequence[Drift], limits: Quality) -> Gate:
    worst = max(drifts, key=lambda drift: abs(drift.change.mean))
    beyond = [drift.name for drift in drifts if drift.change.beyond(limits.max_drift)]
    says = f"drifted: {', '.join(beyond)}" if beyond else f"largest change: {worst.name} {worst.change.mean:+.1%}"
    return Gate("drift", FAILED if beyond else PASSED, worst.change.mean, limits.max_drift, says)


def _judge_drop(change: Interval, limit: float) -> str:
    return FAILED if change.mean < 0 and change.beyond(limit) else PASSED


def _points(change: Interval) -> str:
    return f"{change.mean:+.1%} ({change.low:+.1%} to {change.high:+.1%})"
