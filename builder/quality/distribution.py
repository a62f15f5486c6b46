"""Is sampled output distributed the same plainly and speculatively (M15)? Paired samples at fixed positions, with a negative control.

Each case is a context of the target's own text, after which the next token is nearly certain and the one after it is open.
Many requests continue it, half of them plainly; a drafted token can stand at every position but the first. The counts of
each position are compared by chi-square, all tests of the run together corrected by Holm. In the same run the acceptance
rule is broken on purpose: a test that misses that proves nothing, and the verdict is then inconclusive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from builder.decoding.params import SamplingParams
from builder.quality import statistics
from builder.quality.broken_rule import broken_acceptance
from builder.quality.contexts import Context
from builder.quality.subject import Advance, Ask, Subject

POSITIONS = 4  # tokens sampled; the first comes from the prefill in both arms and is not compared

FULL_SAMPLING = (
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.8, top_p=0.9),
)
QUICK_SAMPLING = (SamplingParams(temperature=1.0), SamplingParams(temperature=0.8, top_p=0.9))


@dataclass(frozen=True)
class PositionTest:
    """One position of one context under one sampling."""

    temperature: float
    top_p: float
    context: str
    position: int
    samples: int  # in each arm
    p_value: float
    adjusted: float  # by Holm, over all tests of the group
    total_variation: float
    expected_variation: float  # what chance alone gives at this number of samples

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Distribution:
    """`control` are the same tests with the broken rule. `rounds` counts drafts of the honest speculative arm."""

    tests: tuple[PositionTest, ...] = ()
    control: tuple[PositionTest, ...] = ()
    rounds: int = 0
    significance: float = 0.01
    note: str = ""

    @property
    def worst(self) -> float:
        """Smallest adjusted p-value; 1.0 without tests."""
        return min((test.adjusted for test in self.tests), default=1.0)

    @property
    def control_caught(self) -> bool:
        return any(test.adjusted < self.significance for test in self.control)

    @property
    def verdict(self) -> str:
        """passed | failed | inconclusive | not applicable (nothing speculates)."""
        if self.note:
            return "not applicable"
        if self.worst < self.significance:
            return "failed"
        return "passed" if self.rounds and self.control_caught else "inconclusive"

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "significance": self.significance,
            "smallest_adjusted_p": self.worst,
            "largest_total_variation": max((test.total_variation for test in self.tests), default=0.0),
            "rounds": self.rounds,
            "control_caught": self.control_caught,
            "control_smallest_adjusted_p": min((test.adjusted for test in self.control), default=None),
            "tests": [test.to_json() for test in self.tests],
            "control": [test.to_json() for test in self.control],
            "note": self.note,
        }


@dataclass
class _Sampler:
    subject: Subject
    samples: int
    advance: Advance
    rounds: int = 0
    _seeds: count[int] = field(default_factory=lambda: count(1))

    def counts(self, context: Context, sampling: SamplingParams, *, speculation: bool) -> list[Counter[int]]:
        """Tokens by position. Every request has a seed of its own, so the two arms are independent."""
        settings = [replace(sampling, max_tokens=POSITIONS, ignore_eos=True, seed=next(self._seeds)) for _ in range(self.samples)]
        replies = self.subject.ask([Ask(context.token_ids, one, speculation) for one in settings], self.advance)
        self.rounds += sum(reply.rounds for reply in replies)
        return [Counter(reply.token_ids[place] for reply in replies) for place in range(POSITIONS)]


def compare(
    subject: Subject,
    contexts: Sequence[Context],
    samplings: Sequence[SamplingParams],
    samples: int,
    significance: float,
    advance: Advance = lambda: None,
) -> Distribution:
    """`samples` requests an arm, context and sampling. Uses the engine only."""
    if not subject.speculates:
        return Distribution(significance=significance, note="nothing speculates")
    sampler = _Sampler(subject, samples, advance)
    found: list[PositionTest] = []
    plain: dict[tuple[int, int], list[Counter[int]]] = {}
    for row, sampling in enumerate(samplings):
        for column, context in enumerate(contexts):
            plain[row, column] = sampler.counts(context, sampling, speculation=False)
            speculative = sampler.counts(context, sampling, speculation=True)
            found += _tests(sampling, context, plain[row, column], speculative, samples)
    rounds = sampler.rounds
    row, column = max(plain, key=lambda place: variety(plain[place]))
    with broken_acceptance():
        broken = sampler.counts(contexts[column], samplings[row], speculation=True)
    control = _tests(samplings[row], contexts[column], plain[row, column], broken, samples)
    return Distribution(_corrected(found), _corrected(control), rounds, significance)


def variety(counts: Sequence[Counter[int]]) -> float:
    """How open the tested positions are, over all of them: the chance that two samples differ (Gini-Simpson). A broken rule shows only
    where there is something to choose: at a low temperature it may leave no trace."""
    return sum(1.0 - sum((times / tokens.total()) ** 2 for times in tokens.values()) for tokens in counts[1:])


def requests(contexts: int, samplings: int, samples: int) -> int:
    """How many requests `compare` makes."""
    return samples * (2 * contexts * samplings + 1)


def _tests(
    sampling: SamplingParams, context: Context, plain: Sequence[Counter[int]], other: Sequence[Counter[int]], samples: int
) -> list[PositionTest]:
    return [
        PositionTest(
            sampling.temperature,
            sampling.top_p,
            context.name,
            place,
            samples,
            p_value=statistics.chi_square(plain[place], other[place]),
            adjusted=1.0,
            total_variation=statistics.total_variation(plain[place], other[place]),
            expected_variation=statistics.expected_variation(plain[place], other[place]),
        )
        for place in range(1, POSITIONS)
    ]


def _corrected(tests: Sequence[PositionTest]) -> tuple[PositionTest, ...]:
    adjusted = statistics.holm([test.p_value for test in tests])
    return tuple(replace(test, adjusted=value) for test, value in zip(tests, adjusted, strict=True))
