"""What exit heads are made of; with it and what it is bounded by, a calibration has a name in the engine cache."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass
from pathlib import Path

from builder.align.prompts import Prompt, prompts_fingerprint, read_prompts, shipped_prompts
from builder.exits.guarantee import Bound
from builder.spec.early_exit import Calibration

FORMAT = 3  # raise when the method changes: older heads are then made again
THRESHOLDS = 5  # the same for thresholds: older ones are then tested again


@dataclass(frozen=True)
class CalibrationOptions:
    """How long, how many answers, with which seed, and on what text of the user's."""

    minutes: float = 20.0
    answers: int = 2000
    seed: int = 0
    text: Path | None = None

    @classmethod
    def of(cls, asked: Calibration, base: Path) -> CalibrationOptions:
        """What pipeline.yaml asks for; `base` is its folder."""
        return cls(asked.minutes, asked.answers, asked.seed, base / asked.text if asked.text else None)

    def prompts(self) -> tuple[Prompt, ...]:
        """The shipped ones, and those of the user's file. SpecError with file:line when a line of it is bad."""
        return (*shipped_prompts(), *(read_prompts(self.text) if self.text else ()))


@dataclass(frozen=True)
class HeadsRecipe:
    """`target` is the fingerprint of the target's engine, `tokenizer` that of its tokenizer."""

    options: CalibrationOptions
    layers: tuple[int, ...]
    target: str
    tokenizer: str
    prompts: tuple[Prompt, ...]

    @property
    def fingerprint(self) -> str:
        options = self.options
        made_of = [FORMAT, self.target, self.tokenizer, self.layers, options.minutes, options.answers, options.seed]
        return digest([*made_of, prompts_fingerprint(self.prompts)])

    @property
    def folder_name(self) -> str:
        return f"exit-heads-{self.fingerprint[:16]}"

    def calibrated(self, bound: Bound, *, keep_all: bool) -> str:
        """Fingerprint of these heads with thresholds for `bound`, of all layers or of those that pay."""
        return digest([THRESHOLDS, self.fingerprint, *astuple(bound), keep_all])


def digest(made_of: list[object]) -> str:
    """SHA-256 over values that JSON knows."""
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
