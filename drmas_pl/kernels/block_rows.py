"""Rows of blocks: what running samples and stored prefixes hold of the key-value memory.

Rows that begin alike have their first blocks in common. A row grows in its last block until that is full; where a row splits in two, both
go on from the blocks that they share, in a new block or in a copy of the last one. Stored prefixes are rows at rest.

Legend: R rows, P prompts, J most blocks of a row, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drmas_pl.kernels.blocks import BLOCK, BlockAllocator
from drmas_pl.kernels.branching import Branching, Ints
from drmas_pl.kernels.decode_attention import AttentionPlan
from drmas_pl.kernels.paged_cache import Cells, PagedCache
from drmas_pl.kernels.prefixes import PrefixIndex, Prompt

# rows are moved to neighbouring blocks when attention goes through more runs of blocks than this
_MOST_RUNS: Final = 8
# a block of so many tokens is shared as it is by the rows that continue it; with fewer it is copied for all but one
_SHARED_FILL: Final = BLOCK // 2


class Rows(NamedTuple):
    """Rows of blocks.

    Attributes:
        table: (R, J) blocks.
        fill: (R, J) number of tokens in each; 0 behind the last block.
        closed: (R,) whether the last block is shared, so that the row goes on in a new one.
    """

    table: Ints
    fill: Ints
    closed: NDArray[np.bool_]

    @property
    def length(self) -> Ints:
        """(R,) number of tokens."""
        return self.fill.sum(1)

    def blocks(self) -> Ints:
        """Return the blocks of all rows, one row after the other."""
        return self.table[self.fill > 0]

    def take(self, kept: Ints) -> Rows:
        """Return the rows ``kept``."""
        return Rows(self.table[kept], self.fill[kept], self.closed[kept])

    def join(self, other: Rows) -> Rows:
        """Return these rows and then ``other``."""
        width = max(self.table.shape[1], other.table.shape[1])
        left = self.widened(width)
        right = other.widened(width)
        return Rows(
            np.concatenate([left.table, right.table]),
            np.concatenate([left.fill, right.fill]),
            np.concatenate([left.closed, right.closed]),
        )

    def widened(self, columns: int) -> Rows:
        """Return rows with room for ``columns`` blocks."""
        missing = columns - self.table.shape[1]
        if missing <= 0:
            return self
        room = ((0, 0), (0, missing))
        return Rows(np.pad(self.table, room), np.pad(self.fill, room), self.closed)

    def cells(self) -> tuple[Ints, Ints, Ints, Ints]:
        """List all tokens, row by row: their row, position, block and offset, (N,) each."""
        filled = self.fill > 0
        fill = self.fill[filled]
        first = np.repeat(np.cumsum(fill) - fill, fill)
        length = self.length
        row = np.repeat(np.arange(len(length)), length)
        at = np.arange(len(row))
        return row, at - (np.cumsum(length) - length)[row], np.repeat(self.table[filled], fill), at - first


def no_rows() -> Rows:
    """Return no rows."""
    return Rows(np.zeros((0, 1), np.int64), np.zeros((0, 1), np.int64), np.zeros(0, bool))


class BlockRows:
    """The rows that are running, and stored prefixes.

    Args:
        cache: Keys and values.
        device: Where they are.
        max_blocks: Bound on the blocks in use, which stored prefixes give way to.

    Attributes:
        rows: What is running.
    """

    def __init__(self, cache: PagedCache, *, device: torch.device, max_blocks: int) -> None:
        self.cache = cache
        self.rows = no_rows()
        self._device = device
        self._max_blocks = max_blocks
        self._blocks = BlockAllocator()
        self._prefixes = PrefixIndex()
        self._runs = 0

    def make(self, prompts: Sequence[Prompt], *, reserved: int) -> tuple[Rows, Ints]:
        """Find blocks for prompts, first those that hold their beginnings already.

        Args:
            prompts: P prompts.
            reserved: Blocks that running rows and these prompts may need in all.

        Returns:
            P rows, which run only when they are added; and how many tokens of each are there, (P,).
        """
        found = [self._prefixes.longest(prompt) for prompt in prompts]
        known = np.array([length for *_, length in found])
        starts = [_cut(blocks, fill, length) for blocks, fill, length in found]
        # noted before anything is forgotten to make room
        for blocks, _ in starts:
            self._blocks.share(blocks)
        self._make_room(reserved, spare=len(prompts))
        rows = no_rows()
        for prompt, start, length in zip(prompts, starts, known.tolist()):
            rows = rows.join(self._continue(start, len(prompt) - length))
        return self._pack(rows), known

    def add(self, rows: Rows) -> None:
        """Let rows run."""
        self.rows = self.rows.join(rows)

    def grow(self) -> None:
        """Have room for one more token of every row, which counts as there."""
        rows = self.rows
        count = (rows.fill > 0).sum(1)
        last = count - 1
        every = np.arange(len(count))
        full = np.flatnonzero(rows.closed | (rows.fill[every, last] == BLOCK))
        if len(full):
            rows = rows.widened(int(count[full].max()) + 1)
            rows.table[full, count[full]] = self._blocks.take(len(full))
            rows.closed[full] = False
            last[full] += 1
        rows.fill[every, last] += 1
        self.rows = rows

    def branch(self, plan: Branching, first: int) -> None:
        """Replace the rows from ``first`` on by those that continue them; rows that nobody continues have been released."""
        rows = self.rows.take(np.arange(first, len(self.rows.table))).take(plan.parent)
        later = np.flatnonzero(~plan.first)
        if len(later):
            self._split(rows, plan, later)
        self.rows = self.rows.take(np.arange(first)).join(rows)

    def release(self, gone: Ints) -> None:
        """Give back the blocks of rows ``gone``."""
        self._blocks.release(self.rows.take(gone).blocks())

    def keep(self, kept: Ints) -> None:
        """Let the rows ``kept`` run alone."""
        self.release(np.setdiff1d(np.arange(len(self.rows.table)), kept))
        self.rows = self.rows.take(kept)

    def store(self, tokens: Prompt, rows: Rows, at: int) -> None:
        """Store row ``at``, which holds ``tokens``, for later prompts to continue."""
        if tokens not in self._prefixes:
            used = rows.fill[at] > 0
            blocks = rows.table[at][used]
            self._prefixes.add(tokens, blocks, rows.fill[at][used])
            self._blocks.store(blocks)

    def discard(self, tokens: Prompt) -> None:
        """Forget a stored prefix; those that begin with it stay."""
        self._blocks.discard(self._prefixes.remove(tokens))

    def clear_row(self, at: int) -> None:
        """Overwrite what a released row held alone, since it may not be finite."""
        blocks = self.rows.take(np.array([at])).blocks()
        self.cache.clear_blocks(self._tensor(blocks[self._blocks.free(blocks)]))

    def forget(self) -> None:
        """Forget every stored prefix."""
        self._prefixes.clear()
        self._blocks.stored[:] = 0

    def open_prefill(self, rows: Rows, new: Ints, *, queries: int) -> None:
        """Let the next forward pass compute the last ``new`` tokens, (P,), of prompts, padded on the left to ``queries`` columns."""
        row, position, block, offset = rows.cells()
        length = rows.length
        columns = int(length.max())
        written = position >= (length - new)[row]
        column = position + (columns - length)[row]
        every = (row, column, block, offset)
        fresh = (row, column - (columns - queries), block, offset)
        self.cache.open(
            self._cells(*(part[written] for part in fresh)),
            self._cells(*every) if columns > queries else None,
            rows=len(length),
            columns=columns,
            queries=queries,
        )

    def open_decode(self) -> AttentionPlan:
        """Let the next forward pass compute the last token of every row, with attention that reads the blocks themselves."""
        self.cache.open(self._newest(), None, rows=len(self.rows.table), columns=1, queries=1)
        plan = AttentionPlan(self.rows.table, self.rows.fill, self._device)
        self._runs = len(plan.runs)
        return plan

    def open_joined(self) -> Tensor | None:
        """Let the next forward pass compute the last token of every row, with attention to rectangles.

        Returns:
            (R, C) bool, True on the real columns of each row; None when all are.
        """
        row, position, block, offset = self.rows.cells()
        length = self.rows.length
        columns = int(length.max())
        # all rows end at the last column, so that windows, which count columns, are right
        seen = self._cells(row, position + (columns - length)[row], block, offset)
        self.cache.open(self._newest(), seen, rows=len(length), columns=columns, queries=1)
        real = np.arange(columns) >= columns - length[:, None]
        return None if real.all() else self._tensor(real)

    def _newest(self) -> Cells:
        last = (self.rows.fill > 0).sum(1) - 1
        every = np.arange(len(last))
        place = (every, last)
        return self._cells(every, np.zeros_like(every), self.rows.table[place], self.rows.fill[place] - 1)

    def _make_room(self, reserved: int, *, spare: int) -> None:
        """Have memory for ``reserved`` blocks, stored prefixes and some ``spare`` blocks; forget prefixes where that is too much."""
        while len(self._prefixes) and reserved + self._blocks.only_stored > self._max_blocks:
            self._blocks.discard(self._prefixes.remove_oldest())
        # blocks that are copied from may belong to nobody else any more, which is what the spare ones are for
        needed = reserved + self._blocks.only_stored + spare
        if needed > self._blocks.capacity:
            # some more, so that memory does not grow with every admission
            capacity = max(needed, min(needed + needed // 4, self._max_blocks))
            self._blocks.grow(capacity)
            self.cache.grow(capacity)

    def _continue(self, start: tuple[Ints, Ints], missing: int) -> Rows:
        """Return one row that begins with blocks that are there and has room for ``missing`` tokens more."""
        blocks, fill = (part.copy() for part in start)
        if len(blocks) and fill[-1] < BLOCK:
            # somebody else goes on in the last block, or may
            copy = self._blocks.take(1)
            self.cache.copy_blocks(self._tensor(blocks[-1:]), self._tensor(copy))
            self._blocks.release(blocks[-1:])
            blocks[-1:] = copy
            here = min(BLOCK - int(fill[-1]), missing)
            fill[-1] += here
            missing -= here
        added = np.full(-(-missing // BLOCK), BLOCK)
        if missing % BLOCK:
            added[-1] = missing % BLOCK
        table = np.concatenate([blocks, self._blocks.take(len(added))])
        return Rows(table[None], np.concatenate([fill, added])[None], np.zeros(1, bool))

    def _split(self, rows: Rows, plan: Branching, later: Ints) -> None:
        """Let every row but the first of a parent go on from the parent's blocks."""
        last = (rows.fill > 0).sum(1) - 1
        fill = rows.fill[np.arange(len(last)), last]
        shared = (fill >= _SHARED_FILL) | rows.closed
        # all rows of such a parent go on in a new block, the first one as well
        several = np.isin(plan.parent, plan.parent[later])
        rows.closed[several & shared] = True
        self._blocks.share(rows.take(later).blocks())
        copied = later[~shared[later]]
        if len(copied):
            source = rows.table[copied, last[copied]]
            target = self._blocks.take(len(copied))
            self.cache.copy_blocks(self._tensor(source), self._tensor(target))
            self._blocks.release(source)
            rows.table[copied, last[copied]] = target

    def _pack(self, rows: Rows) -> Rows:
        """Move blocks of rows beside each other where they lie scattered; return the given rows with their new blocks."""
        if self._runs <= _MOST_RUNS:
            return rows
        self._runs = 0
        high, low = self._blocks.pack()
        if not len(high):
            return rows
        self.cache.exchange_blocks(self._tensor(high), self._tensor(low))
        number = np.arange(self._blocks.capacity)
        number[high] = low
        number[low] = high
        self.rows = self.rows._replace(table=number[self.rows.table])
        self._prefixes.renumber(number)
        return rows._replace(table=number[rows.table])

    def _cells(self, row: Ints, column: Ints, block: Ints, offset: Ints) -> Cells:
        return Cells(*map(self._tensor, (row, column, block, offset)))

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _cut(blocks: Ints, fill: Ints, length: int) -> tuple[Ints, Ints]:
    """Return the blocks of the first ``length`` tokens, and how many of these are in each."""
    before = np.cumsum(fill) - fill
    used = before < length
    return blocks[used], np.minimum(fill[used], length - before[used])
