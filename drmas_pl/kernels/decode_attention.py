"""Attention of many rows over blocks that they may share, so that a shared block's keys and values are read once.

Neighbouring blocks form a run, which is one batched matrix product: the keys of each block with the queries of all rows that use it.
Products go through memory in its own order, whatever rows the blocks belong to, and an index brings the parts of a row together. Exact up
to rounding.

Legend: R rows, J most blocks of a row, E uses of a block by a row, B blocks, H key-value heads, n queries per key-value head (more than one
with grouped-query attention), D head size, L lines: a line is one place for the queries of a row at a block and key-value head.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, linear, scaled_dot_product_attention

from drmas_pl.kernels.blocks import BLOCK
from drmas_pl.kernels.branching import Ints
from drmas_pl.kernels.fast_linear import FastLinearMode
from drmas_pl.kernels.paged_cache import PagedCache

# in lines that are computed for nothing: what a further run costs, and a block that nobody uses
_RUN_ON_CPU: Final = 12
_RUN_ON_ACCELERATORS: Final = 4096
_UNUSED_BLOCK: Final = 4


class Run(NamedTuple):
    """Neighbouring blocks that are multiplied at once.

    Attributes:
        first, last: Blocks ``first:last``.
        width: Places for rows at each block.
        start: Number of places in the runs before.
    """

    first: int
    last: int
    width: int
    start: int


class _Lines(NamedTuple):
    """Indices of lines for one number of key-value heads.

    Attributes:
        source: (L,) which of the (R·H) rows and heads each line belongs to; 0 where nobody is.
        padded: (R·H·J,) lines of each row and head; its first one again where it has fewer.
        bags: (E·H,) lines of each row and head, one after the other.
        offsets: (R·H,) where each begins in ``bags``.
        bias: (L, 1, BLOCK) float32, 0 on tokens and minus infinity behind them.
    """

    source: Tensor
    padded: Tensor
    bags: Tensor
    offsets: Tensor
    bias: Tensor


class AttentionPlan:
    """Where the queries of every row meet the blocks.

    Args:
        table: (R, at least J) blocks of each row.
        fill: As large, how many tokens are in each; 0 behind the last block of a row, which has at least one.
        device: Where keys and values are.

    Attributes:
        runs: Cover every block that a row uses.
    """

    def __init__(self, table: Ints, fill: Ints, device: torch.device) -> None:
        self._device = device
        count = (fill > 0).sum(1)
        most = int(count.max())
        # (R, J), which of the table's entries are blocks
        self._used = fill[:, :most] > 0
        # (E,), row by row
        ids = table[:, :most][self._used]
        place, blocks, users = _places(ids)
        overhead = _RUN_ON_CPU if device.type == "cpu" else _RUN_ON_ACCELERATORS
        self.runs = cut_runs(blocks, users, overhead=overhead)
        firsts, _, widths, starts = np.array(self.runs).T
        run = np.searchsorted(firsts, ids, side="right") - 1
        self._count = count
        self._width = widths[run]
        self._place = place
        self._block = ids - firsts[run]
        self._start = starts[run]
        self._fill = fill[:, :most][self._used]
        self._lines: dict[int, _Lines] = {}

    def lines(self, heads: int) -> _Lines:
        """Return the indices for so many key-value heads; they are the same for all layers."""
        if heads not in self._lines:
            self._lines[heads] = self._make_lines(heads)
        return self._lines[heads]

    def _make_lines(self, heads: int) -> _Lines:
        head = np.arange(heads)
        starts = np.cumsum(self._count) - self._count
        # (E, H): within a run lines are ordered by block, head and place
        line = ((self._start + self._block * self._width) * heads + self._place)[:, None]
        line = line + head * self._width[:, None]
        last = self.runs[-1]
        total = (last.start + (last.last - last.first) * last.width) * heads
        source = np.zeros(total, dtype=np.int64)
        source[line] = np.repeat(np.arange(len(starts)), self._count)[:, None] * heads + head
        steps = np.arange(self._used.shape[1])
        # (R, H, J)
        padded = line[np.where(self._used, starts[:, None] + steps, starts[:, None])].transpose(0, 2, 1)
        bags = padded[np.broadcast_to(self._used[:, None], padded.shape)]
        sizes = np.repeat(self._count, heads)
        filled = np.full(total, BLOCK)
        filled[line] = self._fill[:, None]
        bias = np.where(np.arange(BLOCK) < filled[:, None, None], 0, -np.inf).astype(np.float32)
        arrays = (source, padded.reshape(-1), bags, np.cumsum(sizes) - sizes, bias)
        return _Lines(*(torch.from_numpy(array).to(self._device) for array in arrays))


def _places(ids: Ints) -> tuple[Ints, Ints, Ints]:
    """Number the uses of every block: (E,) each use's number, the distinct blocks, and how often each is used."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    users = np.diff(np.r_[starts, len(ids)])
    place = np.empty_like(ids)
    place[order] = np.arange(len(ids)) - np.repeat(starts, users)
    return place, ordered[starts], users


def cut_runs(blocks: Ints, users: Ints, *, overhead: int) -> tuple[Run, ...]:
    """Cut ascending blocks into runs, so that lines computed for nothing cost less than further runs.

    Args:
        blocks: The blocks in use, ascending.
        users: How many rows use each.
        overhead: Cost of a run, in lines.

    >>> [run[:3] for run in cut_runs(np.array([0, 1, 3, 90, 91]), np.array([8, 8, 7, 1, 1]), overhead=13)]
    [(0, 4, 8), (90, 92, 1)]
    """
    borders = (np.diff(blocks) != 1) | (np.diff(users) != 0)
    edges = np.r_[0, np.flatnonzero(borders) + 1, len(blocks)].tolist()
    runs: list[Run] = []
    for at, end in pairwise(edges):
        first = int(blocks[at])
        last = int(blocks[end - 1]) + 1
        width = int(users[at])
        start = 0
        if runs:
            before = runs[-1]
            wide = max(before.width, width)
            own = (before.last - before.first) * before.width + (last - first) * width
            waste = (last - before.first) * wide - own + _UNUSED_BLOCK * (first - before.last)
            if waste <= overhead:
                runs[-1] = Run(before.first, last, wide, before.start)
                continue
            start = before.start + (before.last - before.first) * before.width
        runs.append(Run(first, last, width, start))
    return tuple(runs)


def attend(query: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, *, scale: float) -> Tensor:
    """Attend to the blocks of each row.

    Args:
        query: (R, H, n, D).
        keys: (B, H, BLOCK, D).
        values: (B, H, BLOCK, D), of which D may be another one.
        plan: Which row uses which blocks.
        scale: Multiplies the scores.

    Returns:
        (R, H, n, D) in the query's type.
    """
    rows, heads, queries, _ = query.shape
    lines = plan.lines(heads)
    # plain products would round half-precision scores, which fused attention kernels do not
    kind = query.device.type
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        # (L, n, D)
        asked = (query.float() * scale).flatten(0, 1).index_select(0, lines.source)
        scores = asked.new_empty(len(asked), queries, BLOCK)
        for run in plan.runs:
            part = keys[run.first : run.last].float().flatten(0, 1)
            torch.bmm(_of_run(asked, run, heads), part.mT, out=_of_run(scores, run, heads))
        scores += lines.bias
        # (R·H, n): one maximum for all blocks of a row, so that their parts can be added up
        peak = scores.amax(-1).index_select(0, lines.padded).view(rows * heads, -1, queries).amax(1)
        weights = scores.sub_(peak.index_select(0, lines.source).unsqueeze(-1)).exp_()
        total = embedding_bag(lines.bags, weights.sum(-1), lines.offsets, mode="sum")
        mixed = asked.new_empty(len(asked), queries, values.shape[-1])
        for run in plan.runs:
            part = values[run.first : run.last].float().flatten(0, 1)
            torch.bmm(_of_run(weights, run, heads), part, out=_of_run(mixed, run, heads))
        joined = embedding_bag(lines.bags, mixed.flatten(1), lines.offsets, mode="sum")
        return (joined.view(rows, heads, queries, -1) / total.view(rows, heads, queries, 1)).to(query.dtype)


def _of_run(by_line: Tensor, run: Run, heads: int) -> Tensor:
    """View the lines of a run, (L, n, …), as (blocks·H, width·n, …)."""
    count = (run.last - run.first) * heads
    lines = by_line[run.start * heads : run.start * heads + count * run.width]
    return lines.view(count, -1, by_line.shape[-1])


class DecodeAttentionMode(FastLinearMode):
    """Replaces scaled-dot-product attention while a :class:`PagedCache` is decoding, and speeds up linear layers.

    Args:
        packs: See :class:`FastLinearMode`.

    Attributes:
        cache: The cache that is decoding.
        plan: Which row uses which blocks; None while attention is left alone.
    """

    def __init__(self, *, packs: bool = True) -> None:
        super().__init__(packs=packs)
        self.cache: PagedCache | None = None
        self.plan: AttentionPlan | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer an attention call with the layer that the cache has just updated; pass everything else on."""
        if func is scaled_dot_product_attention and self.plan is not None and self.cache is not None:
            layer = self.cache.updated
            assert layer is not None
            query = args[0]
            scale = (kwargs or {}).get("scale") or query.shape[-1] ** -0.5
            # query heads of one key-value head are neighbours, whether or not they were already folded into the query length
            folded = query.reshape(query.shape[0], layer.keys.shape[1], -1, query.shape[-1])
            mixed = attend(folded, layer.keys, layer.values, self.plan, scale=scale)
            return mixed.view(*query.shape[:-1], mixed.shape[-1])
        # not by way of the base class: this is called for every operation of the model
        if func is linear and not kwargs:
            return self._linear(args)
        return func(*args, **(kwargs or {}))
