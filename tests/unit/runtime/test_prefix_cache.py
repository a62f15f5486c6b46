"""Blocks are shared by text alone: never wrong ones, never one that is written to, the longest unused given up first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from builder.runtime import prefix_cache
from builder.runtime.block_manager import BlockManager

SIZE, TOTAL = 2, 10


class Table:
    def __init__(self, blocks: list[int], ids: list[int], tenant: str, computed: int) -> None:
        self.blocks, self.ids, self.tenant, self.computed = blocks, ids, tenant, computed


class SharedBlocks(RuleBasedStateMachine):
    """Sequences over few texts; `written` says what was last computed into each block."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(TOTAL, SIZE)
        self.tables: list[Table] = []
        self.written: dict[int, tuple[str, tuple[int, ...]]] = {}

    @rule(ids=st.lists(st.integers(0, 1), min_size=1, max_size=9), tenant=st.sampled_from(["a", "b"]))
    def admit(self, ids: list[int], tenant: str) -> None:
        prefix = self.manager.match(ids, tenant)
        assert len(prefix) * SIZE < len(ids), "the last token must be run"
        for index, block in enumerate(prefix):
            assert self.written[block] == (tenant, tuple(ids[: (index + 1) * SIZE]))
        if not self.manager.can_allocate(len(ids), prefix):
            before = self.manager.num_available
            with pytest.raises(RuntimeError, match="are needed"):
                self.manager.allocate(len(ids), prefix)
            assert self.manager.num_available == before
            return
        blocks = self.manager.allocate(len(ids), prefix)
        assert blocks[: len(prefix)] == prefix
        self.tables.append(Table(blocks, list(ids), tenant, len(prefix) * SIZE))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), new=st.lists(st.integers(0, 1), max_size=4))
    def decode(self, data: st.DataObject, new: list[int]) -> None:
        table = data.draw(st.sampled_from(self.tables))
        table.ids += new
        if not self.manager.can_grow(table.blocks, len(table.ids)):
            table.ids = table.ids[: len(table.blocks) * SIZE]
        self.manager.grow(table.blocks, len(table.ids))
        held = Counter(block for each in self.tables for block in each.blocks)
        for index in range(table.computed // SIZE, len(table.blocks)):
            assert held[table.blocks[index]] == 1, "a shared block is written"
            self.written[table.blocks[index]] = (table.tenant, tuple(table.ids[: (index + 1) * SIZE]))
        table.computed = max(table.computed, len(table.ids) - 1)
        self.manager.publish(table.blocks, table.ids, table.computed, table.tenant)
        for index in range(table.computed // SIZE):  # an exchanged block says the same
            assert self.written[table.blocks[index]] == (table.tenant, tuple(table.ids[: (index + 1) * SIZE]))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.manager.free(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))).blocks)

    @invariant()
    def blocks_are_counted_once_for_each_table(self) -> None:
        held = Counter(block for table in self.tables for block in table.blocks)
        assert [held[block] for block in range(TOTAL)] == self.manager._references
        assert len(held) == self.manager.num_used
        assert self.manager.num_free + self.manager.num_used + self.manager.num_cached == TOTAL

    @invariant()
    def no_entry_outlives_its_parent(self) -> None:
        entries = self.manager._cache._by_block
        assert {id(entry) for entry in entries.values()} == {id(entry) for entry in self.manager._cache._by_key.values()}
        for entry in entries.values():
            assert entry.parent is None or entries[entry.parent.block] is entry.parent


class CollidingBlocks(SharedBlocks):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(prefix_cache, "block_key", lambda *_: b"the same")

    def teardown(self) -> None:
        self.patch.undo()


class RarelyCollidingBlocks(CollidingBlocks):
    """The key is the block's own tokens: blocks at different depths and of different tenants collide."""

    def __init__(self) -> None:
        super().__init__()
        self.patch.setattr(prefix_cache, "block_key", lambda _parent, token_ids, _isolation: bytes(token_ids))


for machine in (SharedBlocks, CollidingBlocks, RarelyCollidingBlocks):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSharedBlocks = SharedBlocks.TestCase
TestCollidingBlocks = CollidingBlocks.TestCase
TestRarelyCollidingBlocks = RarelyCollidingBlocks.TestCase


def cached(manager: BlockManager, ids: list[int], isolation: str = "") -> list[int]:
    """Blocks of a sequence that was computed whole and has ended."""
    blocks = manager.allocate(len(ids))
    manager.publish(blocks, ids, len(ids), isolation)
    kept = list(blocks)
    manager.free(blocks)
    return kept


def test_the_longest_prefix_of_full_blocks_is_found_and_the_last_token_left() -> None:
    manager = BlockManager(8, 2)
    blocks = cached(manager, [1, 2, 3, 4, 5])
    assert (manager.num_cached, manager.num_free, manager.num_used) == (2, 6, 0)
    assert manager.match([1, 2, 3, 4, 9]) == blocks[:2]
    assert manager.match([1, 2, 3, 4]) == blocks[:1]
    assert manager.match([1, 2, 3]) == blocks[:1]
    assert manager.match([3, 4, 5]) == []  # the same tokens at another place are other keys


def test_what_rested_longest_is_evicted_first_and_the_end_of_a_text_before_its_beginning() -> None:
    manager = BlockManager(6, 2)
    old, new = cached(manager, [1, 1, 1, 1]), cached(manager, [2, 2, 2, 2])
    manager.free(manager.allocate(3, manager.match([1, 1, 5])))  # used again: the beginning of the old text is the youngest now
    taken = manager.allocate(2 * 2)
    assert not set(taken) & {*old, *new}, "free blocks are taken first"
    evicted = [manager.allocate(2)[0] for _ in range(4)]
    assert evicted == [old[1], new[1], new[0], old[0]]
    assert not manager.can_allocate(1)


def test_cached_blocks_in_use_are_not_counted_as_room() -> None:
    manager = BlockManager(4, 2)
    cached(manager, [1, 1, 2, 2])
    prefix = manager.match([1, 1, 2, 2, 3])
    assert manager.can_allocate(8, prefix) and not manager.can_allocate(10, prefix)
    table = manager.allocate(5, prefix)
    assert manager.room(table) == 8
    assert manager.can_allocate(6, prefix) and not manager.can_allocate(7, prefix)


def test_two_copies_of_one_text_become_one() -> None:
    manager = BlockManager(8, 2)
    one, two = manager.allocate(5), manager.allocate(5)
    for blocks in (one, two):
        manager.publish(blocks, [1, 2, 3, 4, 5], 5)
    assert one[:2] == two[:2] and one[2] != two[2]
    assert manager.num_used == 4


def test_text_of_another_isolation_key_is_not_found() -> None:
    manager = BlockManager(8, 2)
    cached(manager, [1, 2, 3], "search")
    assert manager.match([1, 2, 3], "support") == manager.match([1, 2, 3]) == []
    assert len(manager.match([1, 2, 3], "search")) == 1


def test_keys_depend_on_the_tokens_what_is_before_them_and_who_shares_them() -> None:
    first = prefix_cache.Entry(prefix_cache.block_key(None, (1,), ""), 0, None, (1,), "")
    keys = [prefix_cache.block_key(*parts) for parts in [(None, (1,), ""), (None, (2,), ""), (first, (1,), ""), (None, (1,), "a")]]
    assert len(set(keys)) == 4
