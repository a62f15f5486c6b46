"""KV blocks are never lost, never held twice, never freed twice."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from builder.runtime.block_manager import BlockManager


class Blocks(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(num_blocks=12, block_size=3)
        self.held: list[list[int]] = []

    @rule(positions=st.integers(1, 20))
    def allocate(self, positions: int) -> None:
        if self.manager.can_allocate(positions):
            self.held.append(self.manager.allocate(positions))
            assert 0 <= len(self.held[-1]) * 3 - positions < 3
        else:
            with pytest.raises(RuntimeError):
                self.manager.allocate(positions)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), positions=st.integers(0, 40))
    def grow(self, data: st.DataObject, positions: int) -> None:
        blocks = data.draw(st.sampled_from(self.held))
        before = list(blocks)
        assert self.manager.can_grow(blocks, positions) == (positions <= (len(blocks) + self.manager.num_free) * 3)
        if self.manager.can_grow(blocks, positions):
            self.manager.grow(blocks, positions)
            assert len(blocks) == max(len(before), -(-positions // 3))
        else:
            with pytest.raises(RuntimeError):
                self.manager.grow(blocks, positions)
            assert blocks == before
        assert blocks[: len(before)] == before

    @precondition(lambda self: self.held)
    @rule(data=st.data(), positions=st.integers(0, 40))
    def trim(self, data: st.DataObject, positions: int) -> None:
        blocks = data.draw(st.sampled_from(self.held))
        before = list(blocks)
        self.manager.trim(blocks, positions)
        assert blocks == before[: -(-positions // 3)]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.manager.free(blocks)
        assert blocks == []

    @invariant()
    def every_block_has_one_place(self) -> None:
        held = [block for blocks in self.held for block in blocks]
        assert len(held) == len(set(held)) == self.manager.num_used
        assert self.manager.num_used + self.manager.num_free == 12
        assert set(held) <= set(range(12))


Blocks.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBlocks = Blocks.TestCase


def test_a_second_free_of_the_same_block_is_refused() -> None:
    manager = BlockManager(4, 2)
    blocks = manager.allocate(4)
    copy = list(blocks)
    manager.free(blocks)
    with pytest.raises(RuntimeError, match="freed twice"):
        manager.free(copy)
    assert manager.num_free == 4
