"""Who uses which block of key-value memory; pure bookkeeping, without any memory of its own.

A block holds the keys and values of up to :data:`BLOCK` neighbouring tokens. Rows that begin alike use the same blocks, as do prompts that
are stored for later ones to continue. Legend: B blocks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from drmas_pl.kernels.branching import Ints

# tokens in a block
BLOCK: Final = 32


class BlockAllocator:
    """Counts the users of every block and hands out free ones.

    Attributes:
        live: (B,) how many running rows use each block.
        stored: (B,) how many stored prefixes do.
    """

    def __init__(self) -> None:
        self.live: Ints = np.zeros(0, dtype=np.int64)
        self.stored: Ints = np.zeros(0, dtype=np.int64)

    @property
    def capacity(self) -> int:
        """B."""
        return len(self.live)

    @property
    def only_stored(self) -> int:
        """Number of blocks that stored prefixes alone use."""
        return int(np.count_nonzero((self.live == 0) & (self.stored > 0)))

    def grow(self, capacity: int) -> None:
        """Add free blocks up to ``capacity``."""
        missing = np.zeros(capacity - self.capacity, dtype=np.int64)
        self.live = np.concatenate([self.live, missing])
        self.stored = np.concatenate([self.stored, missing])

    def take(self, count: int) -> Ints:
        """Give away ``count`` free blocks, the lowest first."""
        found = np.flatnonzero((self.live == 0) & (self.stored == 0))[:count]
        assert len(found) == count, "more blocks are asked for than were reserved"
        self.live[found] = 1
        return found

    def share(self, blocks: Ints) -> None:
        """Note one more row at each of the blocks; a block may come several times."""
        self.live += np.bincount(blocks, minlength=self.capacity)

    def release(self, blocks: Ints) -> None:
        """Note one row less at each of the blocks."""
        self.live -= np.bincount(blocks, minlength=self.capacity)

    def store(self, blocks: Ints) -> None:
        """Note one more stored prefix at each of the blocks, which must differ."""
        self.stored[blocks] += 1

    def discard(self, blocks: Ints) -> None:
        """Note one stored prefix less at each of the blocks."""
        self.stored[blocks] -= 1

    def free(self, blocks: Ints) -> NDArray[np.bool_]:
        """Tell which of the blocks nobody uses."""
        return (self.live[blocks] == 0) & (self.stored[blocks] == 0)

    def pack(self) -> tuple[Ints, Ints]:
        """Choose pairs of blocks to exchange so that those of rows come first; the counts are exchanged here.

        Returns:
            (M,) blocks of rows and (M,) lower blocks that no row uses.

        >>> blocks = BlockAllocator()
        >>> blocks.grow(4)
        >>> blocks.share(blocks.take(4)[3:])
        >>> blocks.release(np.array([1]))
        >>> [part.tolist() for part in blocks.pack()], blocks.live.tolist()
        ([[3], [1]], [1, 2, 1, 0])
        """
        used = self.live > 0
        count = int(np.count_nonzero(used))
        high = count + np.flatnonzero(used[count:])
        low = np.flatnonzero(~used[:count])
        for counts in (self.live, self.stored):
            counts[high], counts[low] = counts[low], counts[high]
        return high, low
