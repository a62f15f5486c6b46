"""Which KV blocks are free, held or cached. A sequence's blocks are a list the manager extends and shortens in place."""

from __future__ import annotations

from collections.abc import Sequence

from builder.runtime.prefix_cache import PrefixCache


class BlockManager:
    """`num_blocks` blocks of `block_size` positions. `can_x` asks, `x` does; `x` without room is a fault of the caller.

    A block is free, used (in the tables of one or more sequences) or cached (in no table, its text may come again). Cached blocks
    are given out when no free one is left. Only published blocks are in several tables, and nobody writes into those: they are
    full, and a sequence writes behind what it has computed.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # popped from the end: low ids first, lately freed ones again soon
        self._references = [0] * num_blocks  # tables that hold the block
        self._cache = PrefixCache(block_size)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return self._cache.num_resting

    @property
    def num_available(self) -> int:
        return self.num_free + self.num_cached

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def blocks_for(self, positions: int) -> int:
        return -(-positions // self.block_size)

    def match(self, token_ids: Sequence[int], isolation: str = "") -> list[int]:
        """Blocks of the longest cached prefix, for `allocate`. The last token is left out: it must be run to have its logits."""
        return self._cache.find(token_ids[:-1], isolation)

    def can_allocate(self, positions: int, prefix: Sequence[int] = ()) -> bool:
        resting = sum(self._references[block] == 0 for block in prefix)  # available now, but not for the rest
        return self.blocks_for(positions) - len(prefix) <= self.num_available - resting

    def allocate(self, positions: int, prefix: Sequence[int] = ()) -> list[int]:
        """A table that begins with the matched blocks `prefix`. All or nothing, as `grow`."""
        if not self.can_allocate(positions, prefix):
            raise RuntimeError(f"{self.blocks_for(positions)} KV blocks are needed, {self.num_available} are available")
        for block in prefix:
            self._share(block)
        blocks = list(prefix)
        self.grow(blocks, positions)
        return blocks

    def room(self, blocks: list[int]) -> int:
        """Positions the sequence could hold if it were given every block that no other holds."""
        return (len(blocks) + self.num_available) * self.block_size

    def can_grow(self, blocks: list[int], positions: int) -> bool:
        return positions <= self.room(blocks)

    def grow(self, blocks: list[int], positions: int) -> None:
        """Add blocks until `positions` fit. All or nothing: without room RuntimeError is raised and nothing taken."""
        if not self.can_grow(blocks, positions):
            missing = self.blocks_for(positions) - len(blocks)
            raise RuntimeError(f"{missing} more KV blocks are needed, {self.num_available} are available")
        while len(blocks) * self.block_size < positions:
            block = self._free.pop() if self._free else self._cache.evict()
            self._references[block] = 1
            blocks.append(block)

    def publish(self, blocks: list[int], token_ids: Sequence[int], computed: int, isolation: str = "") -> None:
        """Cache the full blocks of the first `computed` positions, whose keys and values are right.

        A block whose text is cached already is exchanged for that copy and given back.
        """
        size = self.block_size
        full = computed // size
        first = full
        while first and blocks[first - 1] not in self._cache:
            first -= 1
        for index in range(first, full):
            tokens = tuple(token_ids[index * size : (index + 1) * size])
            known = self._cache.add(blocks[index], blocks[index - 1] if index else None, tokens, isolation)
            if known is None:
                return  # the key is taken by other text: this block and those behind it stay private
            if known != blocks[index]:
                self._share(known)
                self._release(blocks[index])
                blocks[index] = known

    def trim(self, blocks: list[int], positions: int) -> None:
        """Give back the blocks past those that `positions` need, last first: what rejected draft tokens had taken."""
        keep = self.blocks_for(positions)
        while len(blocks) > keep:
            self._release(blocks.pop())

    def free(self, blocks: list[int]) -> None:
        self.trim(blocks, 0)

    def _share(self, block: int) -> None:
        if not self._references[block]:
            self._cache.wake(block)
        self._references[block] += 1

    def _release(self, block: int) -> None:
        if not self._references[block]:
            raise RuntimeError(f"KV block {block} was freed twice")
        self._references[block] -= 1
        if self._references[block]:
            return
        if block in self._cache:
            self._cache.rest(block)
        else:
            self._free.append(block)
