"""What the parts of a round cost now, measured on a text that is not among the prompts, and what they predict.

Passes are timed inside the decode loop, where a verify pass follows draft passes as it does in earnest. What a step costs
beside its passes (scheduling, rows, sampling, delivery) is a term of its own: the overhead.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bench.lab import PLAIN, Lab, Setting
from builder.bench.steps import Step
from builder.plan.cost import StepTimes, expected_tokens, round_time
from builder.spec.pipeline import PipelineSpec

TEXT = "Monday: bread, milk. Tuesday: bread, milk, eggs. Wednesday: bread, milk. " * 5  # repeats, so that n-gram drafts come too
PLAIN_TOKENS, ROUNDS = 12, 8
CALIBRATIONS = 5


@dataclass(frozen=True)
class Costs:
    """Seconds at one stream. `times.verify` is the target's pass over K+1 rows; overheads are per step."""

    draft_tokens: int  # K
    times: StepTimes
    plain_overhead: float
    round_overhead: float  # of a round with K draft passes

    @property
    def plain_step(self) -> float:
        return self.times.plain + self.plain_overhead

    def step(self, drafted: int, draft_passes: float) -> float:
        """Seconds of a step. Verify passes of fewer rows, and overheads of fewer draft passes, lie on the line from a plain step."""
        verify = self.times.plain + (self.times.verify - self.times.plain) * drafted / self.draft_tokens
        overhead = self.plain_overhead + (self.round_overhead - self.plain_overhead) * draft_passes / self.draft_tokens
        return draft_passes * self.times.draft + verify + overhead

    @property
    def full_round(self) -> float:
        """K draft passes, one verify pass, and the overhead (M3's round with its host time)."""
        return round_time(self.times, self.draft_tokens) + self.round_overhead

    def to_json(self) -> dict[str, Any]:
        return {
            "draft_tokens": self.draft_tokens,
            "plain_ms": self.times.plain * 1e3,
            "draft_ms": self.times.draft * 1e3,
            "verify_ms": self.times.verify * 1e3,
            "plain_overhead_ms": self.plain_overhead * 1e3,
            "round_overhead_ms": self.round_overhead * 1e3,
            "verify_over_plain": self.times.verify / self.times.plain,
            "draft_over_plain": self.times.draft / self.times.plain,
        }


def calibrate(lab: Lab, draft_tokens: int) -> Costs:
    """Costs for one K, from a few plain steps and a few rounds. Takes about a third of a second with the demo model."""
    ids = lab.fit(lab.parts.tokenizer.encode(TEXT, add_special_tokens=True), PLAIN_TOKENS + ROUNDS * (draft_tokens + 1))
    method = "early_exit" if lab.parts.draft_exit is not None else "draft_model" if lab.parts.draft is not None else "ngram"
    rounds = lab.answer(Setting(draft_tokens, method), ids, 1 + ROUNDS * (draft_tokens + 1)).steps
    plain = lab.answer(PLAIN, ids, 1 + PLAIN_TOKENS).steps
    full = [step for step in rounds if step.drafted == draft_tokens] or plain  # no match to draft from: then a round is a plain step
    drafts = [step.draft_seconds / step.draft_passes for step in full if step.draft_passes]
    times = StepTimes(
        plain=_median(step.target_seconds for step in plain),
        draft=_median(drafts),
        verify=_median(step.target_seconds for step in full),
    )
    return Costs(draft_tokens, times, _median(step.overhead for step in plain), _median(step.overhead for step in full))


def measure_step_times(folder: Path, spec: PipelineSpec) -> StepTimes:
    """Seconds of a `<p>_decode/N` folder's steps at one stream on this machine now, each with its share of the host's overhead."""
    lab = Lab.open(folder, spec)
    costs = median_costs([calibrate(lab, spec.speculation.max_draft_tokens) for _ in range(CALIBRATIONS)])
    return StepTimes(costs.plain_step, costs.times.draft, costs.times.verify + costs.round_overhead)


def median_costs(costs: Sequence[Costs]) -> Costs:
    """Each term's median over calibrations of one K."""
    return Costs(
        costs[0].draft_tokens,
        StepTimes(*(_median(getattr(cost.times, part) for cost in costs) for part in ("plain", "draft", "verify"))),
        _median(cost.plain_overhead for cost in costs),
        _median(cost.round_overhead for cost in costs),
    )


def predicted_speedup(costs: Costs, steps: Sequence[Step]) -> float:
    """Speed-up of an answer over plain decoding: the tokens its rounds won, at what the cost model says its rounds cost.

    Each round counts with the drafts it had, since a proposer may draft fewer than K tokens, or none, or for nothing.
    """
    return _speedup(costs, steps, sum(step.tokens for step in steps))


def formula_speedup(costs: Costs, steps: Sequence[Step]) -> float:
    """The same with expected tokens from the acceptance rate in place of those won: (1 - a^(k+1)) / (1 - a) for a round of k drafts."""
    chance = acceptance(steps)
    return _speedup(costs, steps, sum(expected_tokens(chance, step.drafted) for step in steps))


def acceptance(steps: Iterable[Step]) -> float:
    """The cost model's a: the chance that one judged token is kept. Tokens after a refused one were never judged."""
    kept = judged = 0
    for step in steps:
        kept += step.accepted
        judged += min(step.accepted + 1, step.drafted)
    return kept / judged if judged else 0.0


def _speedup(costs: Costs, steps: Sequence[Step], tokens: float) -> float:
    seconds = sum(costs.step(step.drafted, step.draft_passes) for step in steps)
    return tokens * costs.plain_step / seconds if seconds else 0.0


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.median(found) if found else 0.0
