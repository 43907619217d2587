"""Group ids: which rows are compared with which.

A group is a set of rows that share a key, such as (task), (task, agent) or (task, agent, turn, state). Estimators see only
the dense integer id of the group, so that every scope of the library is a choice of columns here.

Legend: N rows, G groups; ids are int64 in [0, G).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_integers, check_rows
from drmas_pl.functional.segments import segment_count

# Up to this many table slots per row, marking values in a table is cheaper than sorting them.
_TABLE_SLOTS_PER_ROW = 8


def encode(labels: Sequence[Hashable]) -> Tensor:
    """Number labels in order of first appearance.

    Args:
        labels: N hashable labels: task ids, agent names, state hashes, tuples of them.

    Returns:
        (N,) int64 ids, dense from 0.

    Example:
        >>> encode(["solver", "verifier", "solver"])
        tensor([0, 1, 0])
    """
    seen: dict[Hashable, int] = {}
    return torch.tensor([seen.setdefault(label, len(seen)) for label in labels], dtype=torch.int64)


def group_ids(*columns: Tensor) -> Tensor:
    """Number the distinct combinations of several integer columns.

    Args:
        columns: One or more (N,) integer tensors; any integer values, negative and huge (hashes) included.

    Returns:
        (N,) int64 ids, dense from 0, ordered like the sorted combinations.

    Raises:
        ValueError: No column is given, a column is not integer, or lengths differ.

    Example:
        >>> group_ids(torch.tensor([7, 7, 3, 7]), torch.tensor([0, 1, 0, 0]))
        tensor([1, 2, 0, 1])
    """
    if not columns:
        raise ValueError(
            "group_ids expects at least one column, got none; pass the task column to group by task"
        )
    check_rows(**{f"column {index}": column for index, column in enumerate(columns)})
    check_integers(**{f"column {index}": column for index, column in enumerate(columns)})
    ids = _densify(columns[0])
    for column in columns[1:]:
        other = _densify(column)
        width = int(other.max()) + 1 if other.numel() else 1
        ids = _densify(ids * width + other)
    return ids


def check_group_sizes(group: Tensor, expected: int) -> None:
    """Check that every group has as many rows as samples were asked for.

    Args:
        group: (N,) dense group ids, one row per sample (one row per trajectory for trajectory groups).
        expected: Configured number of samples per group.

    Raises:
        ValueError: A group has another size; the message names the first and counts the rest.

    Example:
        >>> check_group_sizes(torch.tensor([0, 0, 1]), 2)
        Traceback (most recent call last):
        ValueError: every group must have 2 rows as configured, got 1 in group 1 (1 of 2 groups differ); ...
    """
    count = segment_count(group)
    wrong = (count != expected).nonzero().squeeze(-1)
    if wrong.numel():
        first = int(wrong[0])
        raise ValueError(
            f"every group must have {expected} rows as configured, got {int(count[first])} in group {first} "
            f"({wrong.numel()} of {count.numel()} groups differ); drop incomplete groups or refill them before normalising"
        )


def align_rows(group: Tensor, size: int, *, generator: torch.Generator) -> Tensor:
    """Choose rows so that every group has exactly ``size`` of them, by dropping or repeating rows at random.

    Small groups repeat whole rounds of their rows before a random remainder, so that no row is used twice more often than
    another by more than one. Align after normalising: repeated rows must not enter statistics.

    Args:
        group: (N,) integer group ids, for M-GRPO one group per (trajectory, sub-agent).
        size: Rows wanted per group.
        generator: Source of the random choice.

    Returns:
        (G·size,) int64 row indices, group by group.

    Raises:
        ValueError: ``size`` is not positive.

    References:
        Hong et al., 2025, trajectory alignment, arXiv:2511.13288.

    Example:
        >>> align_rows(torch.tensor([0, 1, 1]), 2, generator=torch.Generator().manual_seed(0)).sort().values
        tensor([0, 0, 1, 2])
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    ids = _densify(group)
    shuffled = torch.randperm(ids.numel(), generator=generator)
    order = shuffled[ids[shuffled].argsort(stable=True)]
    count = segment_count(ids)
    start = count.cumsum(0) - count
    slot = torch.arange(size).expand(count.numel(), size) % count.unsqueeze(-1)
    return order[(start.unsqueeze(-1) + slot).reshape(-1)]


def _densify(column: Tensor) -> Tensor:
    """Number the distinct values of one column in sorted order."""
    if not column.numel():
        return column.to(torch.int64)
    low = int(column.min())
    high = int(column.max())
    # Python integers: the span of int64 hashes does not fit into int64.
    span = high - low + 1
    if span > _TABLE_SLOTS_PER_ROW * column.numel():
        inverse: Tensor = torch.unique(column, return_inverse=True)[1]
        return inverse
    offset = column.to(torch.int64) - low
    present = torch.zeros(span, dtype=torch.bool, device=column.device)
    present[offset] = True
    return offset if bool(present.all()) else (present.cumsum(0) - 1)[offset]
