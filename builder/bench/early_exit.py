"""Early exit beside plain decoding: speed, depth, and how often its tokens differ from what the full model says at the same place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from builder.bench.lab import EARLY_EXIT, PLAIN, Lab
from builder.bench.prompts import Prompt
from builder.bench.spread import Spread
from builder.runtime.batch import block_tables, ragged


@dataclass(frozen=True)
class ExitResult:
    """One class of prompts. `differing` is the mean over answers of the share of tokens that differ from the full model's, given the
    very text before them; `identical` the share of answers that are plain decoding's to the token."""

    kind: str
    tokens_per_second: Spread
    speedup: Spread
    layers: Counter[int]  # layers run -> tokens
    differing: float
    identical: float

    @property
    def average_layers(self) -> float:
        return sum(layer * tokens for layer, tokens in self.layers.items()) / max(1, self.layers.total())

    def to_json(self) -> dict[str, Any]:
        return {
            "class": self.kind,
            "tok_s": self.tokens_per_second.median,
            "speedup": self.speedup.median,
            "speedup_spread": self.speedup.to_json(),
            "exit_layers": {str(layer): tokens for layer, tokens in sorted(self.layers.items())},
            "average_layers": self.average_layers,
            "disagreement": self.differing,
            "identical_answers": self.identical,
        }


@dataclass(frozen=True)
class _Pair:
    kind: str
    speed: float
    speedup: float
    layers: Counter[int]
    differing: float
    identical: bool


def measure_exits(lab: Lab, prompts: Sequence[Prompt], tokens: int, on_progress: Callable[[str], None]) -> list[ExitResult]:
    """Each prompt plainly and with early exit, one after the other; one result a class."""
    pairs = []
    for number, prompt in enumerate(prompts, 1):
        on_progress(f"early exit: {prompt.name} ({number} of {len(prompts)})")
        ids = lab.fit(prompt.ids(lab.parts.tokenizer), tokens)
        plain, early = lab.answer(PLAIN, ids, tokens), lab.answer(EARLY_EXIT, ids, tokens)
        natural = early.token_ids[: early.natural_length]
        differing = disagreement(lab, ids, natural)
        speedup = early.tokens_per_second / plain.tokens_per_second if plain.tokens_per_second else 0.0
        same = natural == plain.token_ids[: plain.natural_length]
        pairs.append(_Pair(prompt.kind, early.tokens_per_second, speedup, Counter(early.exit_layers), differing, same))
    return [_result(kind, [pair for pair in pairs if pair.kind == kind]) for kind in dict.fromkeys(pair.kind for pair in pairs)]


@torch.inference_mode()
def disagreement(lab: Lab, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> float:
    """Share of an answer's tokens that the full model, after the same tokens, would not have chosen. Overwrites the KV cache."""
    target, ids = lab.parts.target, [*prompt_ids, *answer_ids[:-1]]
    blocks = range(-(-len(ids) // lab.parts.settings.block_size))
    rows, _ = ragged([(0, 0, ids)], block_tables([blocks]))
    hidden = target.layers(target.embed(rows), rows, 0, target.config.num_layers)
    best = target.greedy(hidden[len(prompt_ids) - 1 :].contiguous())
    return sum(a != b for a, b in zip(best, answer_ids, strict=True)) / len(answer_ids)


def _result(kind: str, pairs: Sequence[_Pair]) -> ExitResult:
    layers: Counter[int] = sum((pair.layers for pair in pairs), Counter())
    return ExitResult(
        kind,
        Spread.of(pair.speed for pair in pairs),
        Spread.of(pair.speedup for pair in pairs),
        layers,
        sum(pair.differing for pair in pairs) / len(pairs),
        sum(pair.identical for pair in pairs) / len(pairs),
    )
