"""Success rates over several samples per task: avg@k and the unbiased pass@k. Averages run over tasks, never over rows.

Legend: B tasks, n samples of a task, c successful ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_integers, check_rows
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.segments import segment_count, segment_mean, segment_sum


def pass_at_k(samples: Tensor | int, successes: Tensor | int, *, k: int) -> Tensor:
    """Estimate the chance that at least one of k samples succeeds, without bias: ``1 − C(n − c, k)/C(n, k)``.

    Args:
        samples: n per task, (B,) integers or one number.
        successes: c per task, same shape.
        k: Samples drawn, from 1 to the smallest n.

    Returns:
        (B,) float64 in [0, 1].

    Raises:
        ValueError: ``k`` is below 1 or above some n, or some c is outside [0, n].

    References:
        Chen et al., 2021, eq. 1, arXiv:2107.03374.

    Example:
        >>> pass_at_k(torch.tensor([4, 16]), torch.tensor([1, 3]), k=2)
        tensor([0.5000, 0.3500], dtype=torch.float64)
    """
    total = torch.as_tensor(samples)
    solved = torch.as_tensor(successes)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if bool((total < k).any()):
        raise ValueError(
            f"k must not exceed the samples of any task, got k={k} with {int(total.min())} samples; draw more or lower k"
        )
    if bool(((solved < 0) | (solved > total)).any()):
        raise ValueError("successes must lie between 0 and samples for every task; count each sample once")
    total, failed = total.to(torch.float64), (total - solved).to(torch.float64)
    miss = torch.ones_like(failed)
    # A product of k ratios in [0, 1] is exact where factorials overflow; it ends at 0 once failures run out.
    for sample in range(k):
        miss = miss * (failed - sample).clamp_min(0.0) / (total - sample)
    return 1.0 - miss


def mean_pass_at_k(success: Tensor, task: Tensor, *, k: int) -> Tensor:
    """Average pass@k over tasks.

    Args:
        success: (N,) bool or 0/1, one row per sample.
        task: (N,) integer task ids.
        k: Samples drawn, at most the smallest number of samples of a task.

    Returns:
        Scalar float64.

    Raises:
        ValueError: ``k`` does not fit, ids are not integer, or a success is neither 0 nor 1.

    Example:
        >>> mean_pass_at_k(torch.tensor([1, 0, 0, 0]), torch.tensor([0, 0, 1, 1]), k=2)
        tensor(0.5000, dtype=torch.float64)
    """
    check_rows(success=success, task=task)
    check_integers(task=task)
    if not torch.equal(success.to(torch.bool).to(success.dtype), success):
        raise ValueError("success must be bool or hold only 0 and 1; threshold graded scores first")
    dense = group_ids(task)
    return pass_at_k(segment_count(dense), segment_sum(success, dense).to(torch.int64), k=k).mean()


def avg_at_k(success: Tensor, task: Tensor) -> Tensor:
    """Average the tasks' mean success; k is the number of samples that each task has.

    Args:
        success: (N,) success or graded score, one row per sample.
        task: (N,) integer task ids.

    Returns:
        Scalar float64.

    Raises:
        ValueError: Shapes differ, or ids are not integer.

    Example:
        >>> avg_at_k(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0, 0, 1]))
        tensor(0.2500, dtype=torch.float64)
    """
    check_rows(success=success, task=task)
    check_integers(task=task)
    return segment_mean(success, group_ids(task)).mean()
