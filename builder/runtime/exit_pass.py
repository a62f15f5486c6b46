"""One pass of the target in which tokens may leave at inner layers, and those that left before have the rest of their keys and values made.

Between passes a token that left holds its state at the layer it left at. The layers above lack its keys and values, and no row of its
sequence goes there without it: where the sequence's next token goes on beyond that layer, the waiting ones go with it, before it. What is
written is what the full model would have written. Every row reads weights that are read anyway, so a few rows more cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from builder.decoding.exits.confidence import probability
from builder.runtime.exits import ExitPoint, Exits, ExitState
from builder.runtime.runner import ExitRunner, Rows, Runner
from builder.runtime.sequence import Sequence, Unfilled


@dataclass(eq=False)
class _Row:
    """`place` of its sequence in the block tables; `number` in the pass, None for one that left in an earlier pass."""

    place: int
    position: int
    token: int
    number: int | None
    waiting: Unfilled | None = None


@dataclass
class ExitPass:
    """Rows 0.. of the pass belong to `decoding`, one each; the others are of prompts and never leave."""

    target: Runner
    exits: Exits
    decoding: Items[Sequence]
    left: dict[int, tuple[int, int]] = field(default_factory=dict)  # place of a sequence -> (token, layer) of what left in this pass

    def run(self, rows: Rows) -> Tensor:
        """The state of every row after the last layer, [rows, hidden_size]; of those that left, zeros."""
        self._tables = rows.block_tables
        columns = zip(rows.sequence.tolist(), rows.positions.tolist(), rows.token_ids.tolist(), strict=True)
        self._active = [_Row(place, position, token, number) for number, (place, position, token) in enumerate(columns)]
        self._rows, self._hidden = rows, self.target.embed(rows)
        self._greedy = self.target if isinstance(self.target, ExitRunner) and self.exits.measure is probability else None
        done = place = 0
        while self._active and place < len(self.exits.points):
            place = self._next(done, place)
            if place < len(self.exits.points):
                point = self.exits.points[place]
                done, place = point.layer, place + 1
                self._join(done)
            else:
                done = self.target.config.num_layers
        if self._active and done < self.target.config.num_layers:
            self._hidden = self.target.layers(self._hidden, self._rows, done, self.target.config.num_layers)
        self._settle()
        return self._in_order(len(rows.token_ids))

    def _next(self, done: int, place: int) -> int:
        """Run on from layer `done` to the exit at `place`, and where the kernels can to the first that a row leaves or joins at; take out
        those that leave. The place of that exit, or how many there are where all layers were run."""
        points = self.exits.points
        asked = [number for number, row in enumerate(self._active) if self._may_leave(row)]
        if self._greedy is None:
            point = points[place]
            self._hidden = self.target.layers(self._hidden, self._rows, done, point.layer)
            self._leave(point, asked, *(point.head.say(self._hidden[asked], self.exits.measure) if asked else ([], [])))
            return place
        joins = next((at for at in range(place, len(points)) if self._waits(points[at].layer)), len(points))
        stop = points[joins].layer if joins < len(points) else self.target.config.num_layers
        passed = points[place : joins + 1]
        found, tokens, confidence = self._greedy.to_exit(self._hidden, self._rows, done, stop, asked, passed)
        if found < len(passed):
            self._leave(passed[found], asked, tokens, confidence)
        return min(place + found, joins)

    def _waits(self, layer: int) -> bool:
        """Whether a row of this pass takes others with it from this layer on."""
        return any(waiting.layer == layer for row in self._active for waiting in self._waiting(row))

    def _waiting(self, row: _Row) -> list[Unfilled]:
        """What left before in the sequence of a row that decodes."""
        return self.decoding[row.number].unfilled if row.number is not None and row.number < len(self.decoding) else []

    def _leave(self, point: ExitPoint, asked: list[int], tokens: list[int], confidence: list[float]) -> None:
        """Take out the rows that are sure enough, and what waited for them: their own state is kept at this layer."""
        sure = [(place, token) for place, token, c in zip(asked, tokens, confidence, strict=True) if c >= point.threshold]
        if not sure:
            return
        for place, token in sure:
            self.left[self._active[place].place] = token, point.layer
        going = [place for place, row in enumerate(self._active) if row.place in self.left]
        for place in going:
            self._keep_waiting(self._active[place], point.layer, self._hidden[place].clone())
        self._keep([place for place in range(len(self._active)) if self._active[place].place not in self.left])

    def _may_leave(self, row: _Row) -> bool:
        if row.number is None or row.number >= len(self.decoding):
            return False
        sequence = self.decoding[row.number]
        limits = self.exits.limits
        open_to_it = sequence.answered >= limits.protected_tokens and len(sequence.unfilled) < limits.max_pending
        return open_to_it and sequence.answer.tally.exit_state is ExitState.ON

    def _keep_waiting(self, row: _Row, layer: int, hidden: Tensor) -> None:
        if row.waiting is not None:
            row.waiting.layer, row.waiting.hidden = layer, hidden
        else:
            self.decoding[row.place].unfilled.append(Unfilled(row.position, layer, hidden))

    def _join(self, layer: int) -> None:
        """Whoever left at this layer goes on with the row of its sequence that does."""
        joined: list[_Row] = []
        states: list[Tensor] = []
        came = False
        for place, row in enumerate(self._active):
            for waiting in self._waiting(row):
                if waiting.layer == layer:
                    token = self.decoding[row.place].token_ids[waiting.position]
                    joined.append(_Row(row.place, waiting.position, token, None, waiting))
                    states.append(waiting.hidden)
                    came = True
            joined.append(row)
            states.append(self._hidden[place])
        if came:
            self._active, self._hidden = joined, torch.stack(states)
            self._rows = self._made()

    def _keep(self, places: list[int]) -> None:
        self._active, self._hidden = [self._active[place] for place in places], self._hidden[places]
        self._rows = self._made()

    def _made(self) -> Rows:
        columns = [(row.token, row.position, row.place) for row in self._active]
        tokens, positions, owners = torch.from_numpy(np.array(columns, dtype=np.int32).reshape(-1, 3).T.copy())
        return Rows(tokens, positions, owners, self._tables)

    def _settle(self) -> None:
        """Those whose sequence ran to the end are filled."""
        filled = {row.place for row in self._active if row.waiting is not None}
        for place in filled:
            sequence = self.decoding[place]
            sequence.num_computed += len(sequence.unfilled)
            sequence.answer.tally.pending_fills += len(sequence.unfilled)
            sequence.unfilled.clear()

    def _in_order(self, count: int) -> Tensor:
        hidden = self._hidden.new_zeros(count, self.target.config.hidden_size)
        numbered = [(place, row.number) for place, row in enumerate(self._active) if row.number is not None]
        if numbered:
            places, numbers = zip(*numbered, strict=True)
            hidden[list(numbers)] = self._hidden[list(places)]
        return hidden
