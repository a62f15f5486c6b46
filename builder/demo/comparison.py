"""The same prompts answered plainly and speculatively by one running server, and what the difference was worth.

Both ways are asked of the same version through the whole ensemble, in alternating order, and each speed is a median: a machine that
slows down for a while slows both. An answer comes as one response, so that Triton's cost of a response, which plain decoding would pay
for each token of a stream, does not flatter speculation. Prefill and decode are kept apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from builder.demo.prompts import PROMPTS, Prompt
from builder.plan.cost import Prediction, StepTimes, predict

MAX_TOKENS = 128
REPEATS = 3


@dataclass(frozen=True)
class Answer:
    """One answer as the client saw it: `seconds` from sending the request to having the whole text; `stats` is its `decode_stats`."""

    text: str
    completion_tokens: int
    seconds: float
    stats: dict[str, Any]

    @property
    def first_token(self) -> float:
        """Seconds until the engine had the first token: waiting and prefill."""
        return float(self.stats["time_to_first_token"])

    @property
    def tokens_per_second(self) -> float:
        """Decode speed with everything between client and engine in it; the first token belongs to prefill. 0.0 when it is the only one."""
        return max(self.completion_tokens - 1, 0) / (self.seconds - self.first_token)


Ask = Callable[[Prompt, bool, int], Answer]  # prompt, speculation, most tokens


@dataclass(frozen=True)
class Way:
    """One way of decoding a prompt: medians over the repeats."""

    tokens_per_second: float
    first_token: float  # seconds

    @classmethod
    def of(cls, answers: list[Answer]) -> Way:
        return cls(statistics.median(a.tokens_per_second for a in answers), statistics.median(a.first_token for a in answers))


@dataclass(frozen=True)
class Comparison:
    """One prompt decoded both ways. `identical` holds for the text and length of every repeat."""

    prompt: Prompt
    answer: Answer  # the first plain one
    identical: bool
    plain: Way
    speculative: Way
    stats: dict[str, Any]  # of the first speculative answer
    prediction: Prediction

    @property
    def speed_up(self) -> float:
        return self.speculative.tokens_per_second / self.plain.tokens_per_second if self.plain.tokens_per_second else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.prompt.name,
            "prompt": self.prompt.text,
            "answer": self.answer.text,
            "completion_tokens": self.answer.completion_tokens,
            "identical": self.identical,
            "acceptance_rate": self.stats["draft_acceptance_rate"],
            "acceptance_length": self.stats["mean_acceptance_length"],
            "tokens_per_second": {"plain": self.plain.tokens_per_second, "speculative": self.speculative.tokens_per_second},
            "time_to_first_token_ms": {"plain": self.plain.first_token * 1e3, "speculative": self.speculative.first_token * 1e3},
            "speed_up": {"measured": self.speed_up, "predicted": self.prediction.speed_up},
        }


def compare(ask: Ask, times: StepTimes, draft_tokens: int, *, repeats: int = REPEATS) -> Iterator[Comparison]:
    """Ask every prompt both ways, `repeats` times in alternating order; one comparison as soon as each is known."""
    for speculation in (False, True):
        ask(PROMPTS[0], speculation, 8)  # warm-up: pages of the weights, the connection
    for prompt in PROMPTS:
        answers: dict[bool, list[Answer]] = {False: [], True: []}
        for repeat in range(repeats):
            for speculation in (False, True) if repeat % 2 == 0 else (True, False):
                answers[speculation].append(ask(prompt, speculation, MAX_TOKENS))
        yield _comparison(prompt, answers[False], answers[True], times, draft_tokens)


def _comparison(prompt: Prompt, plain: list[Answer], speculative: list[Answer], times: StepTimes, draft_tokens: int) -> Comparison:
    stats = speculative[0].stats
    return Comparison(
        prompt=prompt,
        answer=plain[0],
        identical=len({(answer.text, answer.completion_tokens) for answer in plain + speculative}) == 1,
        plain=Way.of(plain),
        speculative=Way.of(speculative),
        stats=stats,
        prediction=predict(times, acceptance(stats["acceptance_histogram"], draft_tokens), draft_tokens),
    )


def acceptance(histogram: list[int], draft_tokens: int) -> float:
    """The cost model's a, the chance that one checked token is kept: accepted / (accepted + refused).

    `histogram[n]` counts rounds that kept n tokens. A round refuses one token unless it kept all K; tokens after the refused one
    were never judged, so accepted/drafted (the acceptance rate) is lower than a. Rounds with a draft shorter than K that kept it
    all count as refusals here, which errs to the low side. 0.0 without rounds.
    """
    accepted = sum(kept * rounds for kept, rounds in enumerate(histogram))
    refused = sum(histogram[:draft_tokens])
    return accepted / (accepted + refused) if accepted + refused else 0.0
