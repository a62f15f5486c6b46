"""Which KV blocks are free and which are held. A sequence's blocks are a list the manager extends and shortens in place."""

from __future__ import annotations


class BlockManager:
    """`num_blocks` blocks of `block_size` positions. `can_x` asks, `x` does; `x` without room is a fault of the caller."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # popped from the end: low ids first, lately freed ones again soon
        self._held = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, positions: int) -> int:
        return -(-positions // self.block_size)

    def can_allocate(self, positions: int) -> bool:
        return self.blocks_for(positions) <= len(self._free)

    def allocate(self, positions: int) -> list[int]:
        blocks: list[int] = []
        self.grow(blocks, positions)
        return blocks

    def room(self, blocks: list[int]) -> int:
        """Positions the sequence could hold if it were given every free block."""
        return (len(blocks) + len(self._free)) * self.block_size

    def can_grow(self, blocks: list[int], positions: int) -> bool:
        return positions <= self.room(blocks)

    def grow(self, blocks: list[int], positions: int) -> None:
        """Add blocks until `positions` fit. All or nothing: without room RuntimeError is raised and nothing taken."""
        if not self.can_grow(blocks, positions):
            missing = self.blocks_for(positions) - len(blocks)
            raise RuntimeError(f"{missing} more KV blocks are needed, {self.num_free} are free")
        while len(blocks) * self.block_size < positions:
            block = self._free.pop()
            self._held[block] = 1
            blocks.append(block)

    def trim(self, blocks: list[int], positions: int) -> None:
        """Give back the blocks past those that `positions` need: what rejected draft tokens had taken."""
        keep = self.blocks_for(positions)
        while len(blocks) > keep:
            block = blocks.pop()
            if not self._held[block]:
                raise RuntimeError(f"KV block {block} was freed twice")
            self._held[block] = 0
            self._free.append(block)

    def free(self, blocks: list[int]) -> None:
        self.trim(blocks, 0)
