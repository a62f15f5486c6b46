"""Acceptance on a few shipped prompts, measured in-process on a version before it is published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.decoding.params import SamplingParams
from builder.errors import BuildError
from builder.repository.engine import open_parts
from builder.repository.layout import TOKENIZER_FOLDER
from builder.repository.tokenizer import load_tokenizer
from builder.runtime.request import Output, Request
from builder.spec.pipeline import PipelineSpec

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Explain in three sentences how a rainbow forms.",
    "Write a Python function that returns the sum of the squares of a list of numbers.",
    "Write a shell command that counts the lines of all text files in a folder.",
    "Correct the spelling in this sentence and repeat it: Teh quick brwon fox jumps over teh lazy dog.",
    "Repeat this list in upper case: apple, banana, cherry, orange, pear.",
)
MAX_TOKENS = 48


@dataclass(frozen=True)
class Acceptance:
    """Sums over the prompts, greedy. `rate` = accepted / drafted; `length` = tokens a round gave, the bonus included."""

    rounds: int
    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def length(self) -> float:
        return 1.0 + self.accepted / self.rounds if self.rounds else 1.0

    def to_json(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "rate": round(self.rate, 4),
            "length": round(self.length, 3),
        }


def measure_acceptance(folder: Path, spec: PipelineSpec, advance: Callable[[str], None] = lambda _: None) -> Acceptance:
    """Decode PROMPTS greedily with the engine in a `<p>_decode/N` folder. Raises BuildError when one of them fails."""
    parts = open_parts(folder, spec)
    engine = replace(parts, settings=replace(parts.settings, prefix_caching=False, adaptive=False)).engine()
    tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER)
    rounds = drafted = accepted = 0
    room = spec.engine.max_seq_len - MAX_TOKENS
    for number, prompt in enumerate(PROMPTS):
        text = tokenizer.chat_prompt([{"role": "user", "content": prompt}]) if tokenizer.chats else prompt
        ids = tokenizer.encode(text, add_special_tokens=not tokenizer.chats)[: max(1, room)]
        last = _decode(engine, Request(f"build-{number}", tuple(ids), SamplingParams(max_tokens=min(MAX_TOKENS, spec.longest_answer))))
        if last.stats is None or last.error:
            raise BuildError(f"the built engine failed on a first prompt ({last.error})", where=str(folder), mend="Run `builder doctor`")
        rounds += last.stats.num_spec_steps
        drafted += last.stats.num_draft_tokens
        accepted += last.stats.num_accepted_draft_tokens
        advance(f"prompt {number + 1}")
    return Acceptance(rounds, drafted, accepted)


def _decode(engine: Any, request: Request) -> Output:
    outputs: list[Output] = []
    engine.submit(request, outputs.append)
    while engine.step():
        pass
    return outputs[-1]
