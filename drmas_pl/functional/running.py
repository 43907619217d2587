"""Role-conditioned advantages: a running mean per (game, player) as the baseline, usable with one sample per task.

Legend: N rows, C entries (rows of one trajectory and key), K keys, b baseline, d decay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_ids, check_range, check_rows
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.scopes import spread, usable_rows
from drmas_pl.functional.segments import segment_count, segment_mean, segment_min


@dataclass(frozen=True, slots=True)
class RunningBaseline:
    """Exponential running mean of the score per key; the state is explicit, nothing is updated in place.

    Attributes:
        mean: (K,) float64 baselines; keys that were never seen are 0.
        decay: d in ``b ← d·b + (1 − d)·s``.

    Raises:
        ValueError: ``decay`` is outside [0, 1].

    References:
        Liu et al., 2025 (SPIRAL), role-conditioned advantage estimation, arXiv:2506.24119.

    Example:
        >>> state = RunningBaseline(torch.zeros(0), decay=0.5)
        >>> advantage, state = state.advantage(torch.tensor([1.0, 1.0, -1.0]), torch.tensor([0, 0, 1]))
        >>> advantage.tolist(), state.mean.tolist()
        ([1.0, 0.5, -1.0], [0.75, -0.5])
    """

    mean: Tensor
    decay: float = 0.95

    def __post_init__(self) -> None:
        check_range("decay", self.decay, low=0.0, high=1.0)

    def advantage(
        self, score: Tensor, key: Tensor, *, entry: Tensor | None = None
    ) -> tuple[Tensor, RunningBaseline]:
        """Subtract each entry's baseline, read before that entry updates it; entries follow one another in row order.

        Args:
            score: (N,) scores; non-finite rows get 0 and update nothing.
            key: (N,) ids of (game, player) that mean the same in every call; ids beyond K start at 0.
            entry: (N,) trajectory ids: the rows of one trajectory and key are averaged to one entry, which updates once.
                ``None`` makes every row an entry.

        Returns:
            (N,) float32 advantages, and the baseline after the batch.

        Raises:
            ValueError: Shapes or ids do not fit.
        """
        check_rows(score=score, key=key, entry=entry)
        check_ids(key=key)
        rows = usable_rows(score)
        order = torch.arange(rows.numel(), device=score.device)
        cell = order if entry is None else group_ids(key[rows], entry[rows])
        value = segment_mean(score[rows], cell)
        cell_key = torch.zeros_like(value, dtype=torch.int64).scatter_(0, cell, key[rows])
        first = segment_min(order.to(torch.float64), cell)

        size = max(self.mean.numel(), int(key.max()) + 1 if key.numel() else 0)
        start = torch.zeros(size, dtype=torch.float64, device=score.device)
        start[: self.mean.numel()] = self.mean.to(start)
        baseline, mean = _scan(value, cell_key, first, start=start, decay=self.decay)
        return spread((value - baseline)[cell], rows, score.numel()), RunningBaseline(mean, self.decay)


def _scan(value: Tensor, key: Tensor, first: Tensor, *, start: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """Run the recursion over entries, all keys at once: (C,) baseline before each entry, and (K,) baseline at the end."""
    by_time = first.argsort()
    order = by_time[key[by_time].argsort(stable=True)]
    count = segment_count(key, num_groups=start.numel())
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=order.device) - (count.cumsum(0) - count)[key[order]]
    length = int(count.max()) if count.numel() else 0
    table = torch.full((start.numel(), length), float("nan"), dtype=torch.float64, device=value.device)
    table[key, rank] = value
    before = torch.empty_like(table)
    mean = start
    for step in range(length):
        before[:, step] = mean
        column = table[:, step]
        mean = torch.where(column.isnan(), mean, decay * mean + (1 - decay) * column)
    return before[key, rank], mean
