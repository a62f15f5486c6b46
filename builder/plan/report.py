"""A plan: what the rules found, the memory it takes, and what speculation is predicted to give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from builder.errors import CheckError
from builder.plan.context import PlanContext
from builder.plan.cost import Prediction, StepTimes, break_even, byte_bound_times, predict
from builder.plan.finding import Finding
from builder.plan.memory import MemoryFit, draft_read_bytes, memory_fit, target_read_bytes
from builder.plan.rules import RULES


@dataclass(frozen=True)
class Measured:
    """Acceptance rate (0..1) on the user's own traffic, and step times in seconds."""

    acceptance: float
    times: StepTimes


@dataclass(frozen=True)
class Plan:
    """`byte_bound_break_even` is the acceptance below which speculation cannot pay, were reading weights the only cost;
    None without a draft model or when it never pays."""

    name: str
    findings: tuple[Finding, ...]
    memory: MemoryFit
    byte_bound_break_even: float | None
    prediction: Prediction | None = None

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    def require(self) -> None:
        """Raise CheckError that lists every rule that said no."""
        refused = [finding for finding in self.findings if not finding.ok]
        if not refused:
            return
        lines = [f"{finding.id}: {finding.message}. {finding.mend}" for finding in refused]
        what = lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} checks failed", *lines])
        raise CheckError(what, where=self.name)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.name,
            "ok": self.ok,
            "findings": [finding.to_json() for finding in self.findings],
            "memory": self.memory.to_json(),
            "byte_bound_break_even": self.byte_bound_break_even,
            "prediction": self.prediction.to_json() if self.prediction else None,
        }


def check(context: PlanContext, measured: Measured | None = None) -> Plan:
    """Run every rule. Reads nothing but the context, so tests and `make_plan` share it."""
    draft_tokens = context.spec.speculation.max_draft_tokens
    draft = draft_read_bytes(context)
    return Plan(
        name=context.spec.metadata.name,
        findings=tuple(rule(context) for rule in RULES),
        memory=memory_fit(context),
        byte_bound_break_even=break_even(byte_bound_times(target_read_bytes(context), draft), draft_tokens) if draft else None,
        prediction=predict(measured.times, measured.acceptance, draft_tokens) if measured else None,
    )
