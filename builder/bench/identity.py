"""Are greedy tokens the same plainly and speculatively, alone and among other requests (M15)?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.bench.lab import Lab, Setting

BATCH = 12  # requests at once: one and eleven others; 24 prompts are then two batches, of 8 they are three that take as long each


@dataclass(frozen=True)
class Difference:
    """The first token that differs from plain decoding alone."""

    prompt: str
    setting: Setting
    among: int  # requests in the batch
    position: int  # in the answer, from 0

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "method": self.setting.method,
            "k": self.setting.draft_tokens,
            "batch": self.among,
            "position": self.position,
        }


@dataclass
class Identity:
    """Counts comparisons of an answer with the plain one; keeps the first that differs."""

    compared: int = 0
    identical: int = 0
    first_difference: Difference | None = None
    references: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by prompt name

    @property
    def fraction(self) -> float:
        """In 0..1; 1.0 when nothing was compared."""
        return self.identical / self.compared if self.compared else 1.0

    def check(self, prompt: str, setting: Setting, token_ids: Sequence[int], among: int = 1) -> None:
        """Compare with the first answer known for the prompt, which must be the plain one."""
        reference = self.references.setdefault(prompt, tuple(token_ids))
        self.compared += 1
        if tuple(token_ids) == reference:
            self.identical += 1
        elif self.first_difference is None:
            self.first_difference = Difference(prompt, setting, among, _first_difference(reference, token_ids))

    def to_json(self) -> dict[str, Any]:
        difference = self.first_difference
        return {
            "fraction": self.fraction,
            "compared": self.compared,
            "identical": self.identical,
            "first_difference": difference.to_json() if difference else None,
        }


def check_batches(lab: Lab, setting: Setting, prompts: dict[str, list[int]], tokens: int, identity: Identity) -> None:
    """Answer every prompt (ids by name) in batches of BATCH, the last one filled up with the first prompts."""
    size = min(BATCH, lab.parts.settings.max_batch_size)
    names = list(prompts)
    for start in range(0, len(names), size):
        group = [names[place % len(names)] for place in range(start, start + size)]
        answers = lab.batch(setting, [prompts[name] for name in group], tokens)
        for name, answer in zip(group, answers, strict=True):
            identity.check(name, setting, answer, among=size)


def _first_difference(expected: Sequence[int], found: Sequence[int]) -> int:
    pairs = zip(expected, found, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(found)))
