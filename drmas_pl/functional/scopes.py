"""Statistics of a grouping scope, spread back over rows: the common ground of all group-relative estimators.

An *entry* is what is counted once: a row (unit turn), or the rows that one trajectory has inside one group (unit trajectory).

Legend: N rows, M usable rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_rows
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.segments import segment_count, segment_max, segment_mean, segment_min, segment_sum

Column = TypeVar("Column", Tensor, Tensor | None)

# Four float32 rounding steps: scores that differ by less came from the same number along two roads.
_EQUAL_TOLERANCE = 2.0**-22


@dataclass(frozen=True, slots=True)
class ScopeStatistics:
    """Statistics over the entries of each row's group.

    Attributes:
        value: (M,) float64 score of the entry the row belongs to.
        mean: (M,) float64 mean over the group's entries.
        std: (M,) float64 standard deviation over the group's entries; 0 for groups of at most ``ddof`` entries.
        count: (M,) int64 entries in the group.
        constant: (M,) bool, True where the group has two or more entries and all are equal.
    """

    value: Tensor
    mean: Tensor
    std: Tensor
    count: Tensor
    constant: Tensor

    @property
    def alone(self) -> Tensor:
        """(M,) bool, True where the group has a single entry."""
        return self.count < 2


def scope_statistics(
    score: Tensor, group: Tensor, *, entry: Tensor | None = None, ddof: int = 1
) -> ScopeStatistics:
    """Compute count, mean and standard deviation of every group's entries, and hand each row its group's.

    Args:
        score: (M,) finite scores.
        group: (M,) integer group ids.
        entry: (M,) trajectory ids when the unit is the trajectory; ``None`` makes every row an entry.
        ddof: Subtracted from the count in the variance's divisor.

    Returns:
        The statistics, one value per row.

    Example:
        >>> scope = scope_statistics(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0, 0, 1]))
        >>> scope.mean.tolist(), scope.count.tolist(), scope.alone.tolist()
        ([0.5, 0.5, 5.0], [2, 2, 1], [False, False, True])
    """
    value = score.to(torch.float64)
    # Any integers may serve as ids; the table below must not grow with their size.
    group = group_ids(group)
    if entry is None:
        entry_value = value
        entry_group = group
    else:
        cell = group_ids(group, entry)
        entry_value = segment_mean(value, cell)
        entry_group = torch.empty_like(entry_value, dtype=torch.int64).scatter_(0, cell, group)
        value = entry_value[cell]
    count = segment_count(entry_group)
    size = count.numel()
    mean = segment_sum(entry_value, entry_group, num_groups=size) / count
    square = segment_sum((entry_value - mean[entry_group]).square(), entry_group, num_groups=size)
    std = (square / (count - ddof).clamp_min(1)).sqrt()
    # a range of R means a deviation of at most R/2, so that only these groups can have equal entries
    suspect = (square <= count * (_EQUAL_TOLERANCE * (1 + mean.abs())).square()) & (count > 1)
    constant = suspect & _equal_groups(entry_value, entry_group, suspect) if bool(suspect.any()) else suspect
    return ScopeStatistics(
        value=value, mean=mean[group], std=std[group], count=count[group], constant=constant[group]
    )


def _equal_groups(value: Tensor, group: Tensor, suspect: Tensor) -> Tensor:
    """Tell which of the suspected groups have nearly equal entries: (G,) bool, undefined for other groups."""
    rows = suspect[group].nonzero().squeeze(-1)
    low = segment_min(value[rows], group[rows], num_groups=suspect.numel())
    high = segment_max(value[rows], group[rows], num_groups=suspect.numel())
    return nearly_equal(low, high)


def nearly_equal(low: Tensor, high: Tensor) -> Tensor:
    """Tell whether minimum and maximum differ by no more than float32 rounding.

    The tolerance is 2⁻²² times the larger of 1 and the magnitude: rewards are sums of numbers of order one, and their
    rounding does not shrink when the sum comes out near zero.

    Args:
        low: Minima.
        high: Maxima, same shape.

    Returns:
        Bool, same shape.

    Example:
        >>> nearly_equal(torch.tensor([0.9, 0.0]), torch.tensor([0.9 + 1e-8, 0.01]))
        tensor([ True, False])
    """
    magnitude = torch.maximum(low.abs(), high.abs()).clamp_min(1.0)
    return (high - low) <= _EQUAL_TOLERANCE * magnitude


def usable_rows(score: Tensor, valid: Tensor | None = None) -> Tensor:
    """Find the rows that may enter statistics: finite score, and marked valid.

    Args:
        score: (N,) scores; NaN and ±inf mark failed rows.
        valid: (N,) bool, False on padding and repeated rows; ``None`` means all.

    Returns:
        (M,) int64 row indices.

    Example:
        >>> usable_rows(torch.tensor([1.0, float("nan"), 0.0]), torch.tensor([True, True, False]))
        tensor([0])
    """
    check_rows(score=score, valid=valid)
    usable = score.isfinite()
    if valid is not None:
        usable = usable & valid.to(torch.bool)
    if bool(usable.all()):
        return torch.arange(usable.numel(), device=usable.device)
    return usable.nonzero().squeeze(-1)


def pick(column: Column, rows: Tensor) -> Column:
    """Select the usable rows of a column that may be absent, without a copy where all rows are usable.

    Args:
        column: (N,) or ``None``.
        rows: (M,) row indices from :func:`usable_rows`.

    Returns:
        (M,), or ``None``.

    Example:
        >>> pick(torch.tensor([5, 6]), torch.tensor([1])), pick(None, torch.tensor([1]))
        (tensor([6]), None)
    """
    if column is None or rows.numel() == column.numel():
        return column
    return column[rows]


def spread(value: Tensor, rows: Tensor, size: int) -> Tensor:
    """Write the values of usable rows into a float32 vector over all rows, 0 elsewhere.

    Args:
        value: (M,) numbers.
        rows: (M,) row indices from :func:`usable_rows`.
        size: N.

    Returns:
        (N,) float32.

    Example:
        >>> spread(torch.tensor([2.0]), torch.tensor([1]), 3)
        tensor([0., 2., 0.])
    """
    value = value.to(torch.float32)
    if rows.numel() == size:
        return value
    return torch.zeros(size, dtype=torch.float32, device=value.device).index_copy_(0, rows, value)
