"""Reductions over groups of rows by scatter: one pass over N rows, no Python loop.

Sums run in float64, because differences of nearly equal scores decide the sign of an advantage. Empty groups (ids that no row
has) reduce to 0, or to ±inf for minimum and maximum.

Legend: N rows, G groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_rows


def segment_count(group: Tensor, *, num_groups: int | None = None) -> Tensor:
    """Count the rows of each group.

    Args:
        group: (N,) ids in [0, G).
        num_groups: G; by default the largest id plus one.

    Returns:
        (G,) int64.

    Example:
        >>> segment_count(torch.tensor([0, 2, 2]))
        tensor([1, 0, 2])
    """
    return torch.bincount(group, minlength=_size(group, num_groups))


def segment_sum(value: Tensor, group: Tensor, *, num_groups: int | None = None) -> Tensor:
    """Sum the rows of each group.

    Args:
        value: (N,) numbers.
        group: (N,) ids in [0, G).
        num_groups: G; by default the largest id plus one.

    Returns:
        (G,) float64.

    Example:
        >>> segment_sum(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 1]))
        tensor([1., 5.], dtype=torch.float64)
    """
    check_rows(value=value, group=group)
    size = _size(group, num_groups)
    return torch.zeros(size, dtype=torch.float64, device=group.device).index_add_(
        0, group, value.to(torch.float64)
    )


def segment_mean(value: Tensor, group: Tensor, *, num_groups: int | None = None) -> Tensor:
    """Average the rows of each group.

    Args:
        value: (N,) numbers.
        group: (N,) ids in [0, G).
        num_groups: G; by default the largest id plus one.

    Returns:
        (G,) float64.

    Example:
        >>> segment_mean(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 1]))
        tensor([1.0000, 2.5000], dtype=torch.float64)
    """
    count = segment_count(group, num_groups=num_groups)
    return segment_sum(value, group, num_groups=num_groups) / count.clamp_min(1)


def segment_var(value: Tensor, group: Tensor, *, num_groups: int | None = None, ddof: int = 1) -> Tensor:
    """Compute the variance of each group in two passes.

    Args:
        value: (N,) numbers.
        group: (N,) ids in [0, G).
        num_groups: G; by default the largest id plus one.
        ddof: Subtracted from the count in the divisor: 1 for the sample variance, 0 for the population's.

    Returns:
        (G,) float64; 0 for groups of at most ``ddof`` rows.

    Example:
        >>> segment_var(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 1]))
        tensor([0., 2.], dtype=torch.float64)
    """
    mean = segment_mean(value, group, num_groups=num_groups)
    square = (value.to(torch.float64) - mean[group]).square()
    divisor = (segment_count(group, num_groups=num_groups) - ddof).clamp_min(1)
    return segment_sum(square, group, num_groups=num_groups) / divisor


def segment_min(value: Tensor, group: Tensor, *, num_groups: int | None = None) -> Tensor:
    """Take the smallest row of each group.

    Args:
        value: (N,) floating point numbers.
        group: (N,) ids in [0, G).
        num_groups: G; by default the largest id plus one.

    Returns:
        (G,) in the dtype of ``value``; +inf for empty groups.

    Example:
        >>> segment_min(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 1]))
        tensor([1., 2.])
    """
    return _extreme(value, group, num_groups, reduce="amin", start=float("inf"))


def segment_max(value: Tensor, group: Tensor, *, num_groups: int | None = None) -> Tensor:
    """Take the largest row of each group.

    Args:
        value: (N,) floating point numbers.
        group: (N,) ids in [0, G).
        num_groups: G; by default the largest id plus one.

    Returns:
        (G,) in the dtype of ``value``; −inf for empty groups.

    Example:
        >>> segment_max(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 1]))
        tensor([1., 3.])
    """
    return _extreme(value, group, num_groups, reduce="amax", start=float("-inf"))


def _extreme(value: Tensor, group: Tensor, num_groups: int | None, *, reduce: str, start: float) -> Tensor:
    """Scatter a minimum or maximum."""
    check_rows(value=value, group=group)
    result = torch.full((_size(group, num_groups),), start, dtype=value.dtype, device=value.device)
    return result.scatter_reduce_(0, group, value, reduce)


def _size(group: Tensor, num_groups: int | None) -> int:
    """Number of groups, read from the ids unless given."""
    if num_groups is not None:
        return num_groups
    return int(group.max()) + 1 if group.numel() else 0
