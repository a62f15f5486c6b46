"""The target's first layers and an exit head as a draft model, whose work the target's pass takes over."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from builder.decoding.proposers import Context, Draft
from builder.runtime.batch import block_tables, ragged
from builder.runtime.exits import ExitPoint
from builder.runtime.runner import ExitRunner, Rows, Runner
from builder.runtime.sequence import Sequence


class ExitDrafter:
    """A DraftModel (decoding/proposers) over a Runner that is the target itself.

    A round first runs each sequence's last token through the layers below the exit, then each drafted one: what they write are the
    target's own keys and values. `through` runs the layers above for all of them at once. Where the head is less sure than
    point.threshold a sequence drafts no further.
    """

    def __init__(self, target: Runner, point: ExitPoint) -> None:
        self._target = target
        self._greedy = target if isinstance(target, ExitRunner) else None
        self._point = point
        self._tables = torch.empty(0)
        # by place of a sequence: what the exit's layers made of its last token and of the drafted ones, in pieces [rows, hidden_size]
        self._states: dict[int, list[Tensor]] = {}

    def open(self, sequences: Items[Sequence]) -> None:
        """Start a round; Context.index points into `sequences`, whose blocks hold all drafted positions already."""
        self._tables = block_tables([sequence.blocks for sequence in sequences])

    def greedy(self, contexts: Items[Context]) -> list[Draft] | None:
        """In one call where the runner can."""
        if self._greedy is None:
            return None
        rows, _ = ragged([(context.index, len(context.token_ids) - 1, context.token_ids[-1:]) for context in contexts], self._tables)
        limits = torch.tensor([context.limit for context in contexts], dtype=torch.int32)
        tokens, states = self._greedy.draft_to_exit(rows, limits, self._point)
        lengths = (tokens >= 0).sum(-1).tolist()
        for place, (context, length) in enumerate(zip(contexts, lengths, strict=True)):
            self._states[context.index] = [states[: length + 1, place]]
        return [Draft(ids[:length]) for ids, length in zip(tokens.tolist(), lengths, strict=True)]

    def begin(self, contexts: Items[Context]) -> tuple[list[Context], Tensor]:
        return self._run(contexts, [context.token_ids[-1] for context in contexts], 0)

    def step(self, contexts: Items[Context], token_ids: Items[int], drafted: int) -> tuple[list[Context], Tensor]:
        return self._run(contexts, token_ids, drafted)

    def _run(self, contexts: Items[Context], token_ids: Items[int], drafted: int) -> tuple[list[Context], Tensor]:
        parts = [
            (context.index, len(context.token_ids) + drafted - 1, (token,)) for context, token in zip(contexts, token_ids, strict=True)
        ]
        rows, _ = ragged(parts, self._tables)
        hidden = self._target.layers(self._target.embed(rows), rows, 0, self._point.layer)
        for context, state in zip(contexts, hidden.split(1), strict=True):
            self._states.setdefault(context.index, []).append(state)
        logits, chance = self._point.head.speak(hidden)
        sure = [place for place, c in enumerate(chance.tolist()) if c > 0 and c >= self._point.threshold]
        return [contexts[place] for place in sure], logits[sure]

    def through(self, rows: Rows, groups: Items[int]) -> Tensor:
        """State of every row after the last layer, [rows, hidden_size]. Row by row the first are those of the round's sequences, so many
        each as `groups` says; what drafting has run goes on from where it is, and the others catch up first."""
        states, self._states = self._states, {}
        layer, depth = self._point.layer, self._target.config.num_layers
        if not states:
            return self._target.layers(self._target.embed(rows), rows, 0, depth)
        known: list[int] = []
        kept: list[Tensor] = []
        first = 0
        for place, count in enumerate(groups):
            own = states.get(place, [])
            known += range(first, first + sum(map(len, own)))
            kept += own
            first += count
        if len(known) == len(rows.token_ids):
            return self._target.layers(torch.cat(kept) if len(kept) > 1 else kept[0].contiguous(), rows, layer, depth)
        fresh = sorted(set(range(len(rows.token_ids))).difference(known))
        behind = Rows(rows.token_ids[fresh], rows.positions[fresh], rows.sequence[fresh], rows.block_tables)
        caught_up = self._target.layers(self._target.embed(behind), behind, 0, layer)
        hidden = caught_up.new_empty(len(rows.token_ids), caught_up.shape[1])
        hidden[known], hidden[fresh] = torch.cat(kept), caught_up
        return self._target.layers(hidden, rows, layer, depth)
