"""The exit head of one layer: its map in torch, its cut INT4 vocabulary in the kernels (builder.exits.head makes it)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from builder.decoding.exits.confidence import Measure
from builder.errors import EngineError
from builder.runtime.runners.torch_aot import VOCABULARY, TorchAotRunner, load_runner

ANOTHER = -1  # stands for every token that the head has no row for


class TorchAotExitHead:
    """Implements builder.runtime.exits.ExitHead. EngineError when the engine lacks the map of an exit head."""

    def __init__(self, runner: TorchAotRunner) -> None:
        self._runner = runner
        matrix, bias, vocabulary = (runner.tensor(name) for name in ("map.matrix", "map.bias", VOCABULARY))
        if matrix is None or bias is None or vocabulary is None:
            raise EngineError("this engine is no exit head", mend="Run `builder calibrate` again")
        self._matrix, self._bias = matrix, bias
        self._up, self._down = runner.tensor("map.up"), runner.tensor("map.down")
        self._ids = torch.cat([vocabulary.long(), torch.tensor([ANOTHER])])
        self._eps = runner.config.rms_norm_eps

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, kept tokens + 1], the last for another token."""
        u = hidden * (hidden.square().mean(-1, keepdim=True) + self._eps).rsqrt()
        narrow = u.bfloat16()
        y = u + F.linear(narrow, self._matrix).float() + self._bias
        if self._up is not None and self._down is not None:
            y = y + F.linear(F.silu(F.linear(narrow, self._up)), self._down).float()
        return self._runner.outputs(y)[:, : len(self._ids)]

    def say(self, hidden: Tensor, measure: Measure) -> tuple[list[int], list[float]]:
        """The most probable token after each row, or ANOTHER with confidence 0, and how sure of it the head is."""
        tokens, (confidence,) = self.judge(hidden, [measure])
        return tokens.tolist(), confidence.tolist()

    def judge(self, hidden: Tensor, measures: Iterable[Measure]) -> tuple[Tensor, list[Tensor]]:
        """The same with several measures: tokens int64 [rows], and a confidence [rows] for each."""
        logits = self.logits(hidden)
        tokens = self._ids[logits.argmax(-1)]
        return tokens, [measure(logits).masked_fill(tokens == ANOTHER, 0.0) for measure in measures]


def load_exit_head(folder: Path, library: Path, *, threads: int | None, cpus: Sequence[int], instruction_set: str) -> TorchAotExitHead:
    """Raises EngineError as load_runner does."""
    runner = load_runner(folder, library, max_seq_len=1, threads=threads, cpus=cpus, instruction_set=instruction_set)
    return TorchAotExitHead(runner)
