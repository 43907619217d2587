"""Users of blocks: counted, free ones found, rows brought together."""

from __future__ import annotations

import numpy as np

from drmas_pl.kernels.blocks import BlockAllocator


def test_free_blocks_are_given_away_lowest_first() -> None:
    blocks = BlockAllocator()
    blocks.grow(5)
    assert blocks.take(3).tolist() == [0, 1, 2]
    blocks.release(np.array([1]))
    blocks.store(np.array([0, 2]))
    blocks.release(np.array([0]))
    assert blocks.only_stored == 1
    assert blocks.take(2).tolist() == [1, 3], "a stored block is not free"
    assert blocks.free(np.arange(5)).tolist() == [False, False, False, False, True]
    blocks.discard(np.array([0, 2]))
    assert blocks.free(np.arange(5)).tolist() == [True, False, False, False, True]


def test_several_rows_may_use_a_block() -> None:
    blocks = BlockAllocator()
    blocks.grow(2)
    taken = blocks.take(1)
    blocks.share(np.array([0, 0]))
    assert blocks.live.tolist() == [3, 0]
    blocks.release(np.array([0, 0]))
    assert not blocks.free(taken)[0]
    blocks.grow(4)
    assert blocks.capacity == 4 and blocks.live.tolist() == [1, 0, 0, 0]


def test_packing_exchanges_the_counts_of_both_kinds() -> None:
    blocks = BlockAllocator()
    blocks.grow(6)
    blocks.take(6)
    blocks.release(np.array([0, 2, 4]))
    blocks.store(np.array([0, 5]))
    high, low = blocks.pack()
    assert (high.tolist(), low.tolist()) == ([3, 5], [0, 2])
    assert blocks.live.tolist() == [1, 1, 1, 0, 0, 0]
    assert blocks.stored.tolist() == [0, 0, 1, 1, 0, 0]
