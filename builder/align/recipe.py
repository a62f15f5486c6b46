"""What an alignment is made of, and what came of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.align.prompts import Prompt, prompts_fingerprint, read_prompts, shipped_prompts
from builder.spec.draft import Draft

FORMAT = 2  # raise when the method changes: older aligned drafts are then made again
RESULT_FILE = "alignment.json"  # in the aligned engine's folder: what was measured, and whether it was kept


@dataclass(frozen=True)
class AlignmentRecipe:
    """Minutes, seed and prompts; with the fingerprints of the unaligned draft, the target and the tokenizer they name an aligned draft.

    The tokenizer is part of it: other ids for the same text are another text to learn.
    """

    minutes: float
    seed: int
    target_fingerprint: str
    tokenizer_fingerprint: str
    prompts: tuple[Prompt, ...]

    def fingerprint(self, unaligned: str) -> str:
        parts = [unaligned, self.target_fingerprint, self.tokenizer_fingerprint]
        made_of = [FORMAT, *parts, self.minutes, self.seed, prompts_fingerprint(self.prompts)]
        return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


@dataclass(frozen=True)
class AlignmentOptions:
    """How long, with which seed, and on what text of the user's."""

    minutes: float = 5
    seed: int = 0
    text: Path | None = None

    @classmethod
    def of(cls, draft: Draft, base: Path) -> AlignmentOptions | None:
        """What pipeline.yaml asks for; `base` is its folder. None when the draft stays as it was quantised."""
        asked = draft.alignment
        return cls(asked.minutes, asked.seed, base / asked.text if asked.text else None) if asked else None

    def recipe(self, target_fingerprint: str, tokenizer_fingerprint: str) -> AlignmentRecipe:
        """With the shipped prompts, and those of the user's file. SpecError with file:line when a line of it is bad."""
        prompts = (*shipped_prompts(), *(read_prompts(self.text) if self.text else ()))
        return AlignmentRecipe(float(self.minutes), self.seed, target_fingerprint, tokenizer_fingerprint, prompts)


def read_result(folder: Path) -> dict[str, Any] | None:
    """results.alignment of the manifest: {before, after, steps, seconds, kept}; None when the draft was not aligned."""
    path = folder / RESULT_FILE
    result: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return result
