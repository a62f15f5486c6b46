"""One engine as Triton's tensorrtllm backend serves it, on a runner of ours: a double for tests, not TensorRT-LLM.

Every call runs its whole text in fresh cache blocks, so nothing but the call decides what comes out. Without drafts it goes on token by
token; with drafts it gives those it would have chosen itself and the one that follows, after one pass, as an engine with
external draft tokens does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from builder.decoding import acceptance
from builder.decoding.filters import penalise
from builder.decoding.params import SamplingParams
from builder.decoding.sampling import distribution, sample
from builder.runtime.batch import block_tables, ragged
from builder.runtime.runner import Runner

BLOCK = 16


class EngineDouble:
    """`max_draft_len` is what the engine was built with; 0 for a draft."""

    def __init__(self, runner: Runner, *, max_draft_len: int, max_seq_len: int) -> None:
        self.runner = runner
        self.max_draft_len = max_draft_len
        self.max_seq_len = max_seq_len
        self._blocks = list(range(-(-(max_seq_len + max_draft_len) // BLOCK)))
        runner.allocate_cache(len(self._blocks), BLOCK)

    def check(self, token_ids: Sequence[int], max_tokens: int, draft: Sequence[int]) -> None:
        """ValueError for what the backend refuses."""
        if len(draft) > self.max_draft_len:
            raise ValueError(f"draft tokens ({len(draft)}) larger than maximum ({self.max_draft_len})")
        if not token_ids or len(token_ids) + max_tokens > self.max_seq_len:
            raise ValueError(f"{len(token_ids)} tokens and {max_tokens} more do not fit max_seq_len {self.max_seq_len}")
        if max_tokens < 1:
            raise ValueError(f"request_output_len is {max_tokens}")

    @torch.inference_mode()
    def run(
        self,
        token_ids: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams,
        seed: int | None = None,
        draft: Sequence[int] = (),
        draft_logits: torch.Tensor | None = None,
    ) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Tokens as they come, and the logits [tokens, V] each was chosen from."""
        self.check(token_ids, max_tokens, draft)
        numbers = np.random.default_rng(seed)
        if draft:
            yield self._verified(list(token_ids), list(draft), sampling, numbers, draft_logits)
            return
        text = list(token_ids)
        for _ in range(max_tokens):
            row = self._logits(text)[-1:]
            text.append(self._choose(row, sampling, text, numbers))
            yield text[-1:], row

    def _verified(
        self, text: list[int], draft: list[int], sampling: SamplingParams, numbers: np.random.Generator, draft_logits: torch.Tensor | None
    ) -> tuple[list[int], torch.Tensor]:
        rows = self._logits(text + draft)[len(text) - 1 :]
        if draft_logits is not None:
            p, q = distribution(rows, sampling), distribution(draft_logits, sampling)
            kept, token = acceptance.verify(p, q, draft, numbers.random((len(draft) + 1, 3)))
            return [*draft[:kept], token], rows[: kept + 1]
        own = [self._choose(rows[i : i + 1], sampling, text + draft[:i], numbers) for i in range(len(rows))]
        kept, token = acceptance.verify_greedy(own, draft)
        return [*draft[:kept], token], rows[: kept + 1]

    def _choose(self, row: torch.Tensor, sampling: SamplingParams, text: list[int], numbers: np.random.Generator) -> int:
        if sampling.greedy:
            return int(penalise(row, sampling.repetition_penalty, text).argmax())
        return sample(distribution(row, sampling, text)[0], float(numbers.random()))

    def _logits(self, text: list[int]) -> torch.Tensor:
        rows, _ = ragged([(0, 0, text)], block_tables([self._blocks]))
        runner = self.runner
        return runner.head(runner.layers(runner.embed(rows), rows, 0, runner.config.num_layers))
