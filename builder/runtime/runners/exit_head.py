"""The exit head of one layer: map, norm and cut INT4 vocabulary, all in the kernels (builder.exits.head makes it)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from builder.decoding.exits.confidence import Measure, probability
from builder.errors import EngineError
from builder.runtime.runners.torch_aot import VOCABULARY, TorchAotRunner, load_runner
from builder.runtime.runners.vocabulary import spread

ANOTHER = -1  # stands for every token that the head has no row for


class TorchAotExitHead:
    """Implements builder.runtime.exits.ExitHead. EngineError when the engine lacks the map of an exit head."""

    def __init__(self, runner: TorchAotRunner) -> None:
        vocabulary = runner.tensor(VOCABULARY)
        if runner.tensor("map.weight") is None or vocabulary is None:
            raise EngineError("this engine is no exit head", mend="Run `builder calibrate` again")
        self.runner = runner
        self._ids = torch.cat([vocabulary.long(), torch.tensor([ANOTHER])])

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, kept tokens + 1], the last for another token."""
        return self.runner.outputs(hidden)[:, : len(self._ids)]

    def say(self, hidden: Tensor, measure: Measure) -> tuple[list[int], list[float]]:
        """The most probable token after each row, or ANOTHER with confidence 0, and how sure of it the head is."""
        tokens, (confidence,) = self.judge(hidden, [measure])
        return tokens.tolist(), confidence.tolist()

    def speak(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [rows, V], -inf for tokens it has no row for; and the probability [rows] of the likeliest, 0 where that is another."""
        logits = self.logits(hidden)
        known = logits[:, :-1]
        chance = probability(logits).masked_fill(logits.argmax(-1) == known.shape[1], 0.0)
        return spread(known, self._ids[:-1], self.runner.config.vocab_size), chance

    def judge(self, hidden: Tensor, measures: Iterable[Measure]) -> tuple[Tensor, list[Tensor]]:
        """The same with several measures: tokens int64 [rows], and a confidence [rows] for each. The kernels find the probability as they
        go, and write no logits where nobody asks for more."""
        places, likeliest = self.runner.judge(hidden, len(self._ids))
        tokens = self._ids[places.long()]
        asked = list(measures)
        logits = self.logits(hidden) if any(measure is not probability for measure in asked) else hidden
        found = [likeliest if measure is probability else measure(logits) for measure in asked]
        return tokens, [confidence.masked_fill(tokens == ANOTHER, 0.0) for confidence in found]


def load_exit_head(folder: Path, library: Path, *, threads: int | None, cpus: Sequence[int], instruction_set: str) -> TorchAotExitHead:
    """Raises EngineError as load_runner does."""
    runner = load_runner(folder, library, max_seq_len=1, threads=threads, cpus=cpus, instruction_set=instruction_set)
    return TorchAotExitHead(runner)
