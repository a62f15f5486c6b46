"""The block that a client process works on now."""

from __future__ import annotations

import itertools
import time

from loadtest.ask import Ask, Message, draw
from loadtest.plan import Plan
from loadtest.timetable import Block


class Shift:
    """What this process's users work on now: a block of the plan, begun when this was made."""

    def __init__(self, plan: Plan, block: Block, worker: int = 0) -> None:
        self.plan = plan
        self.block = block
        self.target = plan.target_of(block)
        self.zero = time.monotonic()
        self.worker = worker
        self._numbers = itertools.count()

    def next_key(self) -> str:
        """Equal in the blocks of a pair, which so ask the same in the same order."""
        return f"{self.plan.seed}/{self.block.pair if self.block.counted else 'warm-up'}/{self.worker}/{next(self._numbers)}"

    def draw(self, key: str, history: tuple[Message, ...] = ()) -> Ask:
        label = f"{self.plan.run}-{self.block.number}"
        return draw(self.plan.workload, self.target, key, label, label[-6:], history)
