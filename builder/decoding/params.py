"""What a request may ask of decoding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingParams:
    """Temperature 0 is greedy. top_k 0 means no limit. `stop` strings end the text and are not part of it."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # number of alternatives to report per token; 0 reports the emitted token only
    n: int = 1  # answers to one prompt, each drawn with a seed of its own

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0
