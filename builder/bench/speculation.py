"""Plain and speculative answers to the prompts, in turn, and what each setting came to in each class."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.bench.calibration import Costs, acceptance, calibrate, formula_speedup, predicted_speedup
from builder.bench.identity import Identity
from builder.bench.lab import PLAIN, Lab, Setting
from builder.bench.prompts import Prompt
from builder.bench.spread import Spread
from builder.bench.steps import Answer, Step

# A full run has 24 prompts and four K: with one of each beside every answer, plain answers and calibrations took a third of its time.
LENGTHS_BESIDE_A_PLAIN_ANSWER = 2
PROMPTS_BESIDE_A_CALIBRATION = 2

GENERAL = ("facts", "code")  # the classes that decide which K is best: a rewrite favours any proposer that copies


@dataclass(frozen=True)
class Sample:
    """One prompt decoded with one setting, beside a plain answer taken within seconds of it and a calibration within a minute."""

    prompt: Prompt
    setting: Setting
    answer: Answer
    plain: Answer
    costs: Costs

    @property
    def speedup(self) -> float:
        return self.answer.tokens_per_second / self.plain.tokens_per_second if self.plain.tokens_per_second else 0.0


@dataclass
class Samples:
    """Everything measured at one stream."""

    plain: list[tuple[Prompt, Answer]] = field(default_factory=list)
    speculative: list[Sample] = field(default_factory=list)
    costs: dict[int, list[Costs]] = field(default_factory=dict)  # by K
    identity: Identity = field(default_factory=Identity)


def measure(
    lab: Lab,
    prompts: Sequence[Prompt],
    methods: Sequence[str],
    draft_lengths: Sequence[int],
    tokens: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Samples:
    """For each prompt and pair of K: a plain answer, then for each of the two each method. What is compared was measured side by side.

    Calibrations alternate with the answers too, one for each K at every second prompt.
    """
    samples = Samples()
    latest: dict[int, Costs] = {}
    _warm_up(lab, methods, draft_lengths)
    for number, prompt in enumerate(prompts, 1):
        on_progress(f"{prompt.kind}: {prompt.name} ({number} of {len(prompts)})")
        ids = lab.fit(prompt.ids(lab.parts.tokenizer), tokens)
        for place, k in enumerate(draft_lengths):
            if place % LENGTHS_BESIDE_A_PLAIN_ANSWER == 0:
                plain = lab.answer(PLAIN, ids, tokens)
                samples.plain.append((prompt, plain))
                samples.identity.check(prompt.name, PLAIN, plain.token_ids)
            if k not in latest or number % PROMPTS_BESIDE_A_CALIBRATION == 1:
                latest[k] = calibrate(lab, k)
                samples.costs.setdefault(k, []).append(latest[k])
            for setting in (Setting(k, method) for method in methods):
                answer = lab.answer(setting, ids, tokens)
                samples.identity.check(prompt.name, setting, answer.token_ids)
                samples.speculative.append(Sample(prompt, setting, answer, plain, latest[k]))
    return samples


def _warm_up(lab: Lab, methods: Sequence[str], draft_lengths: Sequence[int]) -> None:
    """Pages of the weights, allocator and caches: nothing of it is kept."""
    ids = lab.fit(Prompt("facts", "warm-up", "Hello!").ids(lab.parts.tokenizer), 16)
    for setting in (PLAIN, *(Setting(k, method) for k in draft_lengths for method in methods)):
        lab.answer(setting, ids, 16)


@dataclass(frozen=True)
class Result:
    """One setting in one class: speeds are medians over prompts, counts are sums. `predicted` uses the rounds' own lengths."""

    kind: str
    setting: Setting
    tokens_per_second: Spread
    speedup: Spread
    predicted: float
    formula: float  # the prediction with expected tokens from the acceptance rate alone
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, kind: str, setting: Setting, samples: Sequence[Sample]) -> Result:
        return cls(
            kind,
            setting,
            Spread.of(sample.answer.tokens_per_second for sample in samples),
            Spread.of(sample.speedup for sample in samples),
            statistics.median(predicted_speedup(sample.costs, sample.answer.timed_steps) for sample in samples),
            statistics.median(formula_speedup(sample.costs, sample.answer.timed_steps) for sample in samples),
            tuple(step for sample in samples for step in sample.answer.timed_steps),
        )

    @property
    def rounds(self) -> list[Step]:
        """Steps that had a draft."""
        return [step for step in self.steps if step.drafted]

    @property
    def acceptance_rate(self) -> float:
        drafted = sum(step.drafted for step in self.steps)
        return sum(step.accepted for step in self.steps) / drafted if drafted else 0.0

    @property
    def acceptance_length(self) -> float:
        """1 + accepted / rounds, the bonus included."""
        return 1.0 + sum(step.accepted for step in self.rounds) / len(self.rounds) if self.rounds else 1.0

    @property
    def by_position(self) -> list[float]:
        """[i]: share of the rounds with more than i drafted tokens that kept token i and all before it."""
        reached = [[step.accepted > place for step in self.rounds if step.drafted > place] for place in range(self.setting.draft_tokens)]
        return [sum(kept) / len(kept) if kept else 0.0 for kept in reached]

    @property
    def prediction_error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.speedup.median - 1 if self.speedup.median else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "class": self.kind,
            "method": self.setting.method,
            "k": self.setting.draft_tokens,
            "tok_s": self.tokens_per_second.median,
            "tok_s_spread": self.tokens_per_second.to_json(),
            "speedup": self.speedup.median,
            "speedup_spread": self.speedup.to_json(),
            "predicted_speedup": self.predicted,
            "predicted_by_formula": self.formula,
            "prediction_error_percent": 100 * self.prediction_error,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_length": self.acceptance_length,
            "acceptance_by_position": self.by_position,
            "chance_of_keeping": acceptance(self.steps),
            "tokens_per_step": sum(step.tokens for step in self.steps) / max(1, len(self.steps)),
            "share_of_steps_drafted": len(self.rounds) / max(1, len(self.steps)),
            "draft_passes_per_step": sum(step.draft_passes for step in self.steps) / max(1, len(self.steps)),
        }


def results(samples: Sequence[Sample]) -> list[Result]:
    """One for each class and setting, classes in the order of the prompts, settings by K."""
    groups: dict[tuple[str, Setting], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.prompt.kind, sample.setting), []).append(sample)
    return [Result.of(kind, setting, group) for (kind, setting), group in groups.items()]


def median_speedup(samples: Sequence[Sample], setting: Setting) -> float | None:
    """Over facts and code together; over what was measured when neither was. None without samples."""
    mine = [sample for sample in samples if sample.setting == setting]
    general = [sample.speedup for sample in mine if sample.prompt.kind in GENERAL] or [sample.speedup for sample in mine]
    return statistics.median(general) if general else None


def best_setting(samples: Sequence[Sample], method: str | None = None) -> Setting | None:
    """The setting with the highest median speed-up, of one method if given; None when nothing of it was measured."""
    settings = sorted({sample.setting for sample in samples if method in (None, sample.setting.method)})
    return max(settings, key=lambda setting: median_speedup(samples, setting) or 0.0, default=None)
