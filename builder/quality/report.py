"""Everything one verification found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from builder.quality.arms import Arm
from builder.quality.baseline import AgainstLive
from builder.quality.cases import Case
from builder.quality.distribution import Distribution
from builder.quality.drift import Drift
from builder.quality.gates import Gate, overall
from builder.quality.identity import Difference
from builder.quality.votes import Votes


@dataclass(frozen=True)
class Report:
    """`plain` is the baseline, `optimised` the version as it serves; both answer `cases` in order."""

    pipeline: str
    version: str  # a number, or "staged" for one that is not published yet
    form: str  # quick | full
    created: str  # UTC, ISO 8601
    seconds: float
    cases: tuple[Case, ...]
    plain: Arm
    optimised: Arm
    differences: tuple[Difference, ...]
    distribution: Distribution
    drift: tuple[Drift, ...]
    against_live: AgainstLive | None
    votes: Votes | None
    gates: tuple[Gate, ...]

    @property
    def verdict(self) -> str:
        """passed | failed | inconclusive."""
        return overall(self.gates)

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    @property
    def identity(self) -> float:
        return 1.0 - len(self.differences) / len(self.cases)

    @property
    def refused(self) -> list[Gate]:
        """The gates that keep the version from going live."""
        return [gate for gate in self.gates if gate.verdict in ("failed", "inconclusive")]

    def summary(self) -> dict[str, Any]:
        """What the manifest and `builder versions` keep: verdict, gates and the plain baseline."""
        return {
            "verdict": self.verdict,
            "form": self.form,
            "seconds": round(self.seconds, 1),
            "token_identity": self.identity,
            "acceptance_rate": round(self.optimised.accepted / self.optimised.drafted, 4) if self.optimised.drafted else 0.0,
            "baseline": {"success": self.plain.by_suite(self.cases), **_arm(self.plain)},
            "gates": [gate.to_json() for gate in self.gates],
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "version": self.version,
            "created": self.created,
            **self.summary(),
            "optimised": {"success": self.optimised.by_suite(self.cases), **_arm(self.optimised)},
            "differences": [difference.to_json() for difference in self.differences],
            "distribution": self.distribution.to_json(),
            "drift": [drift.to_json() for drift in self.drift],
            "against_live": asdict(self.against_live) if self.against_live else None,
            "votes": self.votes.to_json() if self.votes else None,
            "cases": [_case(*row) for row in self.rows()],
        }

    def rows(self) -> Sequence[tuple[Case, Any, Any]]:
        """Case, plain answer, optimised answer."""
        return list(zip(self.cases, self.plain.answers, self.optimised.answers, strict=True))


def _arm(arm: Arm) -> dict[str, Any]:
    return {"task_success": round(arm.success, 4), "perplexity": round(arm.perplexity, 3), "latency": arm.latency.to_json()}


def _case(case: Case, plain: Any, optimised: Any) -> dict[str, Any]:
    return {"id": case.id, "prompt": case.prompt, "plain": plain.to_json(), "optimised": optimised.to_json()}
