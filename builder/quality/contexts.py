"""Where to sample: places in the target's own answers at which the distribution tests see most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from builder.quality.arms import Arm, fitting
from builder.quality.cases import Case
from builder.quality.scoring import next_token_logits
from builder.quality.subject import Subject

SCANNED = 12  # answers looked at
SHORTEST = 8  # tokens of context, so that n-gram drafts have something to find
MARGIN = 16  # positions left for what is sampled
CERTAIN = 0.8  # probability of the first token that follows: then all samples share what comes before the second


@dataclass(frozen=True)
class Context:
    name: str  # case and place in its answer
    token_ids: tuple[int, ...]


@torch.inference_mode()
def choose_contexts(subject: Subject, cases: Sequence[Case], plain: Arm, wanted: int) -> list[Context]:
    """At most one of each answer, the most telling first. Overwrites the KV cache.

    A place tells more the further apart target and draft are there (total variation), or without a draft model the more
    open the target is; the token before it must be nearly certain.
    """
    found: list[tuple[float, Context]] = []
    for case, answer in list(zip(cases, plain.answers, strict=True))[:: max(1, len(cases) // SCANNED)]:
        prompt, _ = fitting(subject, case)
        before = list(prompt)
        if subject.parts.draft is None:  # n-gram drafts need text that comes again
            before = [*prompt, *answer.token_ids, *prompt]
        ids = [*before, *answer.token_ids]
        if len(answer.token_ids) < 2 or not SHORTEST <= len(ids) < subject.parts.settings.max_seq_len - MARGIN:
            continue
        start = len(before) - 1
        p = next_token_logits(subject, ids, start).softmax(-1)
        if subject.parts.draft is not None:
            q = next_token_logits(subject, ids, start, subject.parts.draft).softmax(-1)
            telling = 0.5 * (p - q).abs().sum(-1)
        else:
            telling = 1.0 - p.amax(-1)
        best, place = _best(p, telling, answer.token_ids)
        found.append((best, Context(f"{case.id}@{place}", tuple(ids[: len(before) + place]))))
    found.sort(key=lambda item: -item[0])
    return [context for _, context in found[:wanted]]


def _best(p: torch.Tensor, telling: torch.Tensor, answer: Sequence[int]) -> tuple[float, int]:
    """p, telling [answer + 1, ...]: row i decides answer[i]. The place i such that answer[i] is nearly certain and row i + 1 tells most."""
    chances = p[torch.arange(len(answer)), torch.tensor(answer)]
    value = torch.where(chances >= CERTAIN, telling[1:], telling[1:] * chances)
    place = int(value[: len(answer) - 1].argmax())
    return float(value[place]), place
