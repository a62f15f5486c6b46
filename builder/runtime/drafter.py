"""The draft model's passes over the sequences of one round, and the account of its KV cache."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from builder.decoding.proposers import Context, Draft
from builder.runtime.batch import block_tables, ragged
from builder.runtime.runner import GreedyRunner, Runner
from builder.runtime.sequence import Sequence


class Drafter:
    """A DraftModel (decoding/proposers) over a Runner.

    Shared cache: what the target verified is already there, so a round begins with the last token alone, and what
    the draft writes past it is overwritten by the verify pass. Own cache: a round first runs what is missing, which
    is a prompt after admission, one token after a full acceptance (the last drafted one was never run), else nothing.
    """

    def __init__(self, runner: Runner, *, shared_kv: bool, max_rows: int) -> None:
        self._runner = runner
        self._greedy = runner if isinstance(runner, GreedyRunner) else None
        self._shared = shared_kv
        self._max_rows = max_rows
        self._sequences: Items[Sequence] = ()
        self._tables = torch.empty(0)

    def open(self, sequences: Items[Sequence]) -> None:
        """Start a round; Context.index points into `sequences`, whose blocks hold all drafted positions already."""
        self._sequences = sequences
        self._tables = block_tables([sequence.blocks for sequence in sequences])

    def greedy(self, contexts: Items[Context]) -> list[Draft] | None:
        """In one call where the runner can, every context lacks its last token only, and all stop by one rule."""
        rules = {context.stop for context in contexts}
        if self._greedy is None or len(rules) != 1 or any(len(context.token_ids) - self._start(context) != 1 for context in contexts):
            return None
        rows, _ = ragged([(context.index, len(context.token_ids) - 1, context.token_ids[-1:]) for context in contexts], self._tables)
        limits = torch.tensor([context.limit for context in contexts], dtype=torch.int32)
        tokens, confidences = self._greedy.continue_greedily(rows, limits, rules.pop())
        lengths = (tokens >= 0).sum(-1).tolist()
        sure = confidences.tolist() or [[]] * len(contexts)
        drafts = [Draft(ids[:length], confidences=row[:length]) for ids, row, length in zip(tokens.tolist(), sure, lengths, strict=True)]
        if not self._shared:
            for context, draft in zip(contexts, drafts, strict=True):
                self._sequences[context.index].draft_computed = len(context.token_ids) + len(draft) - 1
        return drafts

    def begin(self, contexts: Items[Context]) -> tuple[list[Context], Tensor]:
        """One pass of at most max_rows rows. A context whose missing part does not fit is caught up over several rounds."""
        parts, ready, ready_parts = [], [], []
        spare = self._max_rows
        for context in contexts:
            start = self._start(context)
            missing = context.token_ids[start : start + spare] if spare else []
            if not missing:
                continue
            spare -= len(missing)
            parts.append((context.index, start, missing))
            if start + len(missing) == len(context.token_ids):
                ready.append(context)
                ready_parts.append(len(parts) - 1)
        hidden, ends = self._run(parts)
        last = [ends[part] - 1 for part in ready_parts]
        if len(last) < len(hidden):
            hidden = hidden[last]
        return ready, self._runner.head(hidden) if ready else hidden

    def step(self, contexts: Items[Context], token_ids: Items[int], drafted: int) -> tuple[list[Context], Tensor]:
        parts = [
            (context.index, len(context.token_ids) + drafted - 1, (token,)) for context, token in zip(contexts, token_ids, strict=True)
        ]
        return list(contexts), self._runner.head(self._run(parts)[0])

    def _start(self, context: Context) -> int:
        return len(context.token_ids) - 1 if self._shared else self._sequences[context.index].draft_computed

    def _run(self, parts: Items[tuple[int, int, Items[int]]]) -> tuple[Tensor, list[int]]:
        rows, ends = ragged(parts, self._tables)
        hidden = self._runner.layers(self._runner.embed(rows), rows, 0, self._runner.config.num_layers)
        if not self._shared:
            for index, start, ids in parts:
                self._sequences[index].draft_computed = start + len(ids)
        return hidden, ends
