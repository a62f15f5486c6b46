"""What a load test found, and its JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from builder.spec.slo import Slo
from loadtest.counts import client_counts, outcome_counts
from loadtest.plan import Plan
from loadtest.sample import Sample
from loadtest.server_p95 import ServerP95
from loadtest.summary import Arm, Check, checks, ratio, tokens_per_second
from loadtest.timetable import PLAIN


@dataclass(frozen=True)
class Report:
    """`label`: the name under which the ledger counts a tenant. The promises of `slo` are checked for the arm that users get."""

    pipeline: str
    workload: str
    plan: Plan
    samples: tuple[Sample, ...]
    slo: Slo
    label: Callable[[str], str]
    since: datetime
    until: datetime
    server_p95: tuple[ServerP95, ...] = ()  # empty where the server's metrics are out of reach

    @cached_property
    def arms(self) -> dict[str, Arm]:
        names = dict.fromkeys(block.arm for block in self.plan.blocks if block.counted)
        return {name: Arm.of(name, self.samples, self.plan.blocks) for name in names}

    @property
    def served(self) -> Arm:
        """The arm that is not the plain baseline."""
        return next(arm for name, arm in self.arms.items() if name != PLAIN)

    @cached_property
    def checks(self) -> list[Check]:
        return checks(self.served, self.slo, streams=any(name != "generate" for name in self.plan.workload.protocols))

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @cached_property
    def ratio(self) -> float | None:
        return ratio(self.samples, self.plan.blocks)

    @property
    def clients(self) -> dict[str, Any]:
        return client_counts(self.samples, self.label, self.since, self.until)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "workload": self.workload,
            "arrivals": self.plan.workload.arrivals,
            "users": self.plan.users,
            "rate": self.plan.rate,
            "workers": self.plan.workers,
            "seed": self.plan.seed,
            "arms": {name: arm.to_json() for name, arm in self.arms.items()},
            "ratio": self.ratio,
            "slo": {"passed": self.passed, "arm": self.served.name, "checks": [check.to_json() for check in self.checks]},
            "server_p95": [found.to_json() for found in self.server_p95],
            "counts": {**outcome_counts(self.samples), **self.clients},
            "errors": self.errors(),
            "blocks": [
                {"arm": block.arm, "pair": block.pair, "seconds": block.seconds, "tok_s": tokens_per_second(self.samples, block)}
                for block in self.plan.blocks
                if block.counted
            ],
        }

    def errors(self) -> dict[str, int]:
        """Messages of failures, and of refusals of good requests, with their numbers."""
        found: dict[str, int] = {}
        for sample in self.samples:
            if sample.error and sample.fault != "malformed":
                found[sample.error] = found.get(sample.error, 0) + 1
        return dict(sorted(found.items(), key=lambda item: -item[1]))
