"""What new prompts have in common with those of an earlier batch.

Teams append: the next prompt of an episode often begins with all of the previous one. Pure index arithmetic; the caller
copies keys and values accordingly.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from drmas_pl.kernels.branching import Ints

Prompt = tuple[int, ...]


class Prefixes(NamedTuple):
    """For each new prompt, where its beginning is already known.

    Attributes:
        source: (P,) earlier prompt that shares the longest beginning.
        length: (P,) how many tokens they share, always fewer than the new prompt has; 0 for none.
    """

    source: Ints
    length: Ints


def shared_prefixes(prompts: Sequence[Prompt], earlier: Sequence[Prompt]) -> Prefixes:
    """Find the longest common beginnings.

    One token of every prompt is left to compute, since its logits are wanted.

    >>> shared_prefixes([(1, 2, 3), (7,), (1, 2)], [(5, 6), (1, 2, 9)])
    Prefixes(source=array([1, 0, 1]), length=array([2, 0, 1]))
    """
    order = sorted(range(len(earlier)), key=earlier.__getitem__)
    ranked = [earlier[row] for row in order]
    found = Prefixes(np.zeros(len(prompts), dtype=np.int64), np.zeros(len(prompts), dtype=np.int64))
    for row, prompt in enumerate(prompts):
        at = bisect(ranked, prompt)
        # in lexical order the longest common beginning is that of a neighbour
        for near in range(max(at - 1, 0), min(at + 1, len(ranked))):
            length = min(common_length(prompt, ranked[near]), len(prompt) - 1)
            if length > found.length[row]:
                found.source[row] = order[near]
                found.length[row] = length
    return found


def columns_of(prefixes: Prefixes) -> tuple[Ints, Ints]:
    """List every shared token once.

    Returns:
        (N,) new prompt and (N,) position of each shared token.

    >>> rows, positions = columns_of(Prefixes(np.array([0, 0]), np.array([2, 1])))
    >>> rows.tolist(), positions.tolist()
    ([0, 0, 1], [0, 1, 0])
    """
    rows = np.repeat(np.arange(len(prefixes.length)), prefixes.length)
    # positions count from 0 within each prompt: the running index less the number of tokens of the prompts before
    before = np.cumsum(prefixes.length) - prefixes.length
    return rows, np.arange(len(rows)) - np.repeat(before, prefixes.length)


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
