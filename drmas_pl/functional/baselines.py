"""Advantages whose baseline is not the plain group mean: leave-one-out, batch whitening, best of k.

Legend: N rows, G groups, A advantage, n group size, c successes in a group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drmas_pl.functional.advantages import SingletonRule, check_singleton, group_normalize
from drmas_pl.functional.checks import check_integers, check_rows
from drmas_pl.functional.evaluation import pass_at_k
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.scopes import (
    ScopeStatistics,
    nearly_equal,
    pick,
    scope_statistics,
    spread,
    usable_rows,
)
from drmas_pl.functional.segments import segment_count, segment_sum


def leave_one_out(
    score: Tensor,
    group: Tensor,
    *,
    entry: Tensor | None = None,
    agent: Tensor | None = None,
    valid: Tensor | None = None,
    singleton: SingletonRule = "zero",
) -> Tensor:
    """Subtract from each score the mean of the *other* entries of its group.

    Equals ``(s − μ)·n/(n − 1)``. Groups of equal entries give exactly 0; non-finite scores are excluded.

    Args:
        score: (N,) scores.
        group: (N,) group ids.
        entry: (N,) trajectory ids when the unit is the trajectory, as in ``group_normalize``.
        agent: (N,) agent ids, needed by ``agent_batch`` only.
        valid: (N,) bool, False on padding and repeated rows.
        singleton: Groups of one: ``zero``, ``raw`` (A = s), or ``agent_batch`` (leave-one-out over the agent's entries).

    Returns:
        (N,) float32 advantages.

    Raises:
        ValueError: Shapes or ids do not fit, or ``agent_batch`` lacks ``agent``.

    References:
        Ahmadian et al., 2024, arXiv:2402.14740.

    Example:
        >>> leave_one_out(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64))
        tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    """
    check_rows(score=score, group=group, entry=entry, agent=agent, valid=valid)
    check_integers(group=group, entry=entry, agent=agent)
    check_singleton(singleton, agent)
    rows = usable_rows(score, valid)
    usable, entry, agent = pick(score, rows), pick(entry, rows), pick(agent, rows)
    scope = scope_statistics(usable, pick(group, rows), entry=entry)
    advantage = _excess_over_others(scope)
    if singleton == "raw":
        advantage = torch.where(scope.alone, scope.value, advantage)
    elif singleton == "agent_batch" and agent is not None:
        advantage = torch.where(
            scope.alone, _excess_over_others(scope_statistics(usable, agent, entry=entry)), advantage
        )
    return spread(advantage, rows, score.numel())


def whiten(value: Tensor, mask: Tensor | None = None, *, ddof: int = 1, eps: float = 1e-8) -> Tensor:
    """Shift and scale all selected values to mean 0 and variance 1.

    Args:
        value: Numbers of any shape, rows or tokens.
        mask: Bool of the same shape, True on values that count; ``None`` means all.
        ddof: Subtracted from the count in the variance's divisor.
        eps: Added to the variance, under the root.

    Returns:
        Float32 of the same shape; 0 where masked, everywhere 0 if the selected values are equal or fewer than two.

    Raises:
        ValueError: Mask and value differ in shape.

    Example:
        >>> whiten(torch.tensor([1.0, 3.0, 99.0]), torch.tensor([True, True, False]))
        tensor([-0.7071,  0.7071,  0.0000])
    """
    mask = torch.ones_like(value, dtype=torch.bool) if mask is None else mask.to(torch.bool)
    if mask.shape != value.shape:
        raise ValueError(
            f"mask must have shape {tuple(value.shape)} like value, got {tuple(mask.shape)}; broadcast it first"
        )
    selected = value[mask].to(torch.float64)
    result = torch.zeros_like(value, dtype=torch.float32)
    if selected.numel() < 2 or bool(nearly_equal(selected.min(), selected.max())):
        return result
    white = (selected - selected.mean()) * (selected.var(correction=ddof) + eps).rsqrt()
    result[mask] = white.to(torch.float32)
    return result


def reinforce_plus_plus(score: Tensor, group: Tensor | None = None, *, valid: Tensor | None = None) -> Tensor:
    """Whiten scores over the whole batch, after subtracting the group mean if groups are given.

    Args:
        score: (N,) scores.
        group: (N,) group ids for the baseline variant (groups of one are centred to 0), ``None`` for the plain one.
        valid: (N,) bool, False on padding and repeated rows.

    Returns:
        (N,) float32 advantages; non-finite and invalid rows 0.

    References:
        Hu, 2025, arXiv:2501.03262.

    Example:
        >>> reinforce_plus_plus(torch.tensor([1.0, 0.0, 0.0, 1.0]))
        tensor([ 0.8660, -0.8660, -0.8660,  0.8660])
        >>> reinforce_plus_plus(torch.tensor([1.0, 0.0, 5.0, 5.0]), torch.tensor([0, 0, 1, 1]))
        tensor([ 1.2247, -1.2247,  0.0000,  0.0000])
    """
    rows = usable_rows(score, valid)
    usable = score[rows] if group is None else group_normalize(score[rows], group[rows], None)
    return spread(whiten(usable), rows, score.numel())


def pass_at_k_advantage(success: Tensor, group: Tensor, *, k: int) -> Tensor:
    """Give each row the mean advantage, over all k-subsets of its group, of the subset's best-of-k reward.

    Args:
        success: (N,) bool or 0/1, whether the row solved its task.
        group: (N,) task ids.
        k: Subset size, from 1 to the size of the smallest group.

    Returns:
        (N,) float32 advantages; 0 in groups where every subset, or none, holds a success.

    Raises:
        ValueError: ``k`` exceeds a group's size, or a success is neither 0 nor 1.

    References:
        Chen et al., 2025, Pass@k training (analytic form), arXiv:2508.10751.

    Example:
        >>> pass_at_k_advantage(torch.tensor([1, 0, 0, 0]), torch.zeros(4, dtype=torch.int64), k=2)
        tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    """
    check_rows(success=success, group=group)
    check_integers(group=group)
    wins = success.to(torch.bool)
    if not torch.equal(wins.to(success.dtype), success):
        raise ValueError("success must be bool or hold only 0 and 1; threshold graded scores first")
    group = group_ids(group)
    size, solved = segment_count(group), segment_sum(success, group).to(torch.int64)
    best = pass_at_k(size, solved, k=k)
    std = (best * (1 - best)).sqrt()
    # A failed row's subset draws its k − 1 companions from the other n − 1 rows: C(m−1, k−1)/C(n−1, k−1) = C(m, k)/C(n, k)·n/m.
    best_with_failure = 1 - (1 - best) * size / (size - solved).clamp_min(1)
    excess = torch.where(wins, 1 - best[group], (best_with_failure - best)[group])
    signal = std[group] > 0
    return torch.where(signal, excess / torch.where(signal, std[group], 1.0), 0.0).to(torch.float32)


def _excess_over_others(scope: ScopeStatistics) -> Tensor:
    """Score minus the mean of the group's other entries; 0 for groups of one or of equal entries."""
    count = scope.count.to(torch.float64)
    excess = (scope.value - scope.mean) * count / (count - 1).clamp_min(1.0)
    return excess.masked_fill(scope.alone | scope.constant, 0.0)
