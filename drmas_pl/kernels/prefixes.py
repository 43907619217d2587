"""Find what a new prompt has in common with token sequences whose keys and values are stored.

Teams append: the next prompt of a trajectory often begins with all of the previous one and its response. Pure bookkeeping.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import OrderedDict

import numpy as np

from drmas_pl.kernels.branching import Ints

Prompt = tuple[int, ...]
NOTHING: Ints = np.zeros(0, dtype=np.int64)


class PrefixIndex:
    """Stored token sequences and the blocks that hold them, in the order in which they were last used."""

    def __init__(self) -> None:
        # blocks, and number of tokens in each
        self._rows: OrderedDict[Prompt, tuple[Ints, Ints]] = OrderedDict()
        # in lexical order, where the longest common beginning is that of a neighbour
        self._ranked: list[Prompt] = []

    def __len__(self) -> int:
        return len(self._ranked)

    def __contains__(self, tokens: Prompt) -> bool:
        return tokens in self._rows

    def add(self, tokens: Prompt, blocks: Ints, fill: Ints) -> None:
        """Store a sequence that is not there yet, and how many of its tokens are in each block."""
        self._rows[tokens] = (blocks, fill)
        insort(self._ranked, tokens)

    def longest(self, prompt: Prompt) -> tuple[Ints, Ints, int]:
        """Find the longest beginning that a stored sequence shares, and note its use.

        One token of the prompt is left to compute, since its logits are wanted.

        Returns:
            Blocks of the stored sequence, the number of its tokens in each, and how many tokens both share.

        >>> index = PrefixIndex()
        >>> index.add((5, 6), np.array([0]), np.array([2]))
        >>> index.add((1, 2, 9), np.array([1]), np.array([3]))
        >>> [(blocks.tolist(), length) for blocks, _, length in map(index.longest, ((1, 2, 3), (7,), (1, 2)))]
        [([1], 2), ([], 0), ([1], 1)]
        """
        at = bisect(self._ranked, prompt)
        length = 0
        found: Prompt | None = None
        for near in self._ranked[max(at - 1, 0) : at + 1]:
            common = min(common_length(prompt, near), len(prompt) - 1)
            if common > length:
                length = common
                found = near
        if found is None:
            return NOTHING, NOTHING, 0
        self._rows.move_to_end(found)
        return *self._rows[found], length

    def remove(self, tokens: Prompt) -> Ints:
        """Forget a sequence and return its blocks; none if it is not stored."""
        if tokens not in self._rows:
            return NOTHING
        del self._ranked[bisect(self._ranked, tokens) - 1]
        return self._rows.pop(tokens)[0]

    def remove_oldest(self) -> Ints:
        """Forget the sequence that was used longest ago and return its blocks."""
        return self.remove(next(iter(self._rows)))

    def renumber(self, number: Ints) -> None:
        """Replace every block by its new ``number``, (B,)."""
        for tokens, (blocks, fill) in self._rows.items():
            self._rows[tokens] = (number[blocks], fill)

    def clear(self) -> None:
        """Forget every sequence."""
        self._rows.clear()
        self._ranked.clear()


def common_length(left: Prompt, right: Prompt) -> int:
    """Count equal tokens at the beginning, by bisection, because slices compare at the speed of C.

    >>> common_length((1, 2, 3), (1, 2, 9, 9))
    2
    """
    low = 0
    high = min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
