"""Full KV blocks by what they hold, so that a prompt which begins as an earlier one did skips that part of its prefill."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, eq=False)
class Entry:
    """A block that holds the keys and values of `token_ids` behind the tokens of its parents, back to position 0."""

    key: bytes
    block: int
    parent: Entry | None
    token_ids: tuple[int, ...]
    isolation: str


def block_key(parent: Entry | None, token_ids: Sequence[int], isolation: str) -> bytes:
    """16 bytes over the previous block's key, the block's tokens and who may share it."""
    digest = blake2b(parent.key if parent else b"", digest_size=16)
    digest.update(array("i", token_ids).tobytes())
    digest.update(isolation.encode())
    return digest.digest()


class PrefixCache:
    """The cached blocks. One that no sequence holds rests, and the one that has rested longest is evicted first.

    A key only finds an entry; its tokens are compared, and its parent must be the entry matched just before, so equal keys of
    different text serve nobody wrong keys. Sequences release a block before those in front of it (BlockManager.trim): no entry
    outlives its parent.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._by_key: dict[bytes, Entry] = {}
        self._by_block: dict[int, Entry] = {}
        self._resting: OrderedDict[int, None] = OrderedDict()  # blocks, longest rested first

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    @property
    def num_resting(self) -> int:
        return len(self._resting)

    def find(self, token_ids: Sequence[int], isolation: str) -> list[int]:
        """Blocks of the longest cached prefix of full blocks."""
        blocks: list[int] = []
        parent = None
        for end in range(self._block_size, len(token_ids) + 1, self._block_size):
            tokens = tuple(token_ids[end - self._block_size : end])
            parent = self._matching(block_key(parent, tokens, isolation), parent, tokens, isolation)
            if parent is None:
                break
            blocks.append(parent.block)
        return blocks

    def add(self, block: int, before: int | None, token_ids: tuple[int, ...], isolation: str) -> int | None:
        """Enter a full block that follows the cached block `before` (None at position 0).

        Returns the block that holds this text: `block`, or the one entered earlier. None when other text has taken the key.
        """
        parent = None if before is None else self._by_block[before]
        key = block_key(parent, token_ids, isolation)
        if key in self._by_key:
            known = self._matching(key, parent, token_ids, isolation)
            return None if known is None else known.block
        self._by_key[key] = self._by_block[block] = Entry(key, block, parent, token_ids, isolation)
        return block

    def _matching(self, key: bytes, parent: Entry | None, token_ids: tuple[int, ...], isolation: str) -> Entry | None:
        entry = self._by_key.get(key)
        same = entry is not None and entry.parent is parent and entry.token_ids == token_ids and entry.isolation == isolation
        return entry if same else None

    def rest(self, block: int) -> None:
        """The last sequence that held the block has released it."""
        self._resting[block] = None

    def wake(self, block: int) -> None:
        del self._resting[block]

    def evict(self) -> int:
        """Forget the block that has rested longest. KeyError when none rests."""
        block, _ = self._resting.popitem(last=False)
        del self._by_key[self._by_block.pop(block).key]
        return block
