"""Places in the batch, given away in the order of a policy, where every sequence runs by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from builder.runtime.policy import Policy
from builder.runtime.sequence import Sequence, Status


class Places:
    """`most` sequences run at once. Belongs to one event loop."""

    def __init__(self, most: int, policy: Policy) -> None:
        self.running: list[Sequence] = []
        self._most = most
        self._policy = policy
        self._waiting: dict[Sequence, asyncio.Future[None]] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def hold(self, sequence: Sequence) -> AsyncIterator[None]:
        """Wait until it is the sequence's turn, and keep the place inside."""
        self._policy.arrived(sequence, (*self._waiting, *self.running))
        turn = self._waiting[sequence] = asyncio.get_running_loop().create_future()
        try:
            self._give()
            await turn
            yield
        finally:
            self._waiting.pop(sequence, None)
            if sequence.status is Status.RUNNING:  # it may be cancelled between its turn and its first step
                self.running.remove(sequence)
            sequence.status = Status.FINISHED
            self._give()

    def _give(self) -> None:
        while self._waiting and len(self.running) < self._most:
            sequence = min(self._waiting, key=self._policy.rank)
            sequence.status = Status.RUNNING
            self.running.append(sequence)
            self._policy.admitted(sequence)
            turn = self._waiting.pop(sequence)
            if not turn.done():  # cancelled, and not told yet: its `finally` gives the place to the next
                turn.set_result(None)
