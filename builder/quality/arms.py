"""Every case answered twice by the same engine: plainly, and as the version would serve it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from builder.decoding.params import SamplingParams
from builder.quality import grading
from builder.quality.cases import Case
from builder.quality.scoring import score
from builder.quality.subject import Advance, Ask, Reply, Subject


@dataclass(frozen=True)
class Graded:
    """One answer and what is measured of it."""

    token_ids: tuple[int, ...]
    text: str
    success: bool
    declined: bool
    repetition: float
    nll: float  # nats a token, under the target
    differing: float = 0.0  # share of tokens that the target, after the same text, would not have chosen

    def to_json(self) -> dict[str, Any]:
        """Without the tokens; the text is of a suite's prompt, never of a user's."""
        values = asdict(self)
        del values["token_ids"]
        return values | {
            "tokens": len(self.token_ids),
            "repetition": round(self.repetition, 4),
            "nll": round(self.nll, 4),
            "differing": round(self.differing, 4),
        }


@dataclass(frozen=True)
class Latency:
    """95th percentiles in seconds, with `concurrency` requests at once in this process (no server, no network)."""

    concurrency: int
    first_token_p95: float
    inter_token_p95: float
    total_p95: float
    tokens_per_second: float  # of all requests together, while the arm ran

    @classmethod
    def of(cls, replies: Sequence[Reply], concurrency: int, seconds: float) -> Latency:
        def p95(values: list[float]) -> float:
            return float(np.quantile(values, 0.95)) if values else 0.0

        tokens = sum(len(reply.token_ids) for reply in replies)
        spaced = [reply.inter_token for reply in replies if len(reply.token_ids) > 1]
        firsts, totals = [reply.first for reply in replies], [reply.total for reply in replies]
        return cls(concurrency, p95(firsts), p95(spaced), p95(totals), tokens / seconds if seconds else 0.0)

    def to_json(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Arm:
    answers: tuple[Graded, ...]  # in the order of the cases
    latency: Latency
    rounds: int
    drafted: int
    accepted: int

    @property
    def success(self) -> float:
        return share([answer.success for answer in self.answers])

    @property
    def perplexity(self) -> float:
        """exp of the mean over answers of their mean negative log-probability."""
        return math.exp(sum(answer.nll for answer in self.answers) / len(self.answers)) if self.answers else 1.0

    def by_suite(self, cases: Sequence[Case]) -> dict[str, float]:
        """Share of right answers by suite."""
        suites: dict[str, list[bool]] = {}
        for case, answer in zip(cases, self.answers, strict=True):
            suites.setdefault(case.suite, []).append(answer.success)
        return {suite: round(share(found), 4) for suite, found in suites.items()}


def share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 0.0


def fitting(subject: Subject, case: Case) -> tuple[tuple[int, ...], int]:
    """The case's prompt and answer length, cut to the version's context and its longest answer."""
    longest = max(1, subject.parts.settings.max_seq_len // 2)
    tokens = min(case.max_tokens, longest)
    return tuple(case.ids(subject.tokenizer)[: subject.parts.settings.max_seq_len - tokens - 1]), tokens


def ask_all(subject: Subject, cases: Sequence[Case], *, speculation: bool, advance: Advance) -> list[Reply]:
    """Greedy answers to all cases."""
    asks = []
    for case in cases:
        ids, tokens = fitting(subject, case)
        asks.append(Ask(ids, SamplingParams(max_tokens=tokens), speculation))
    return subject.ask(asks, advance)


def grade(subject: Subject, cases: Sequence[Case], replies: Sequence[Reply], known: Sequence[Graded] = ()) -> tuple[Graded, ...]:
    """`known` are the other arm's answers: the same tokens need no second look. Overwrites the KV cache."""
    graded = []
    for place, (case, reply) in enumerate(zip(cases, replies, strict=True)):
        tokens = tuple(reply.token_ids)
        if place < len(known) and known[place].token_ids == tokens:
            graded.append(known[place])
            continue
        text = subject.text(tokens)
        scored = score(subject, fitting(subject, case)[0], tokens)
        passes, declines = grading.passes(case.check, text), grading.declines(text)
        graded.append(Graded(tokens, text, passes, declines, grading.repetition(tokens), scored.nll, scored.differing))
    return tuple(graded)


def make_arm(answers: tuple[Graded, ...], replies: Sequence[Reply], concurrency: int, seconds: float) -> Arm:
    sums = (sum(getattr(reply, name) for reply in replies) for name in ("rounds", "drafted", "accepted"))
    return Arm(answers, Latency.of(replies, concurrency, seconds), *sums)
