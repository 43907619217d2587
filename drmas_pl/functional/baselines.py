"""Advantages whose baseline is not the plain group mean: leave-one-out, batch whitening, best of k.

Legend: N rows, G groups, A advantage, n group size, c successes in a group.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from drmas_pl.functional.advantages import SingletonRule, check_singleton
from drmas_pl.functional.checks import check_integers, check_rows
from drmas_pl.functional.evaluation import pass_at_k
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.scopes import (
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
    sample: Tensor | None = None,
    agent: Tensor | None = None,
    valid: Tensor | None = None,
    singleton: SingletonRule = "zero",
) -> Tensor:
    """Subtract from each score the mean of the *other* entries of its group, or of the other samples.

    Without ``sample`` equals ``(s − μ)·n/(n − 1)``. Groups of equal entries give exactly 0; non-finite scores are excluded.

    Args:
        score: (N,) scores.
        group: (N,) group ids.
        entry: (N,) trajectory ids when the unit is the trajectory, as in ``group_normalize``.
        sample: (N,) trajectory ids when the baseline is the mean over the other trajectories of the group, each counting once with the
            mean of its rows, so that no row is a baseline of its own trajectory; ``None`` takes the other entries.
        agent: (N,) agent ids, needed by ``agent_batch`` only.
        valid: (N,) bool, False on padding and repeated rows.
        singleton: Groups of one entry or sample: ``zero``, ``raw`` (A = s), or ``agent_batch`` (leave-one-out over the agent's entries).

    Returns:
        (N,) float32 advantages.

    Raises:
        ValueError: Shapes or ids do not fit, or ``agent_batch`` lacks ``agent``.

    References:
        Ahmadian et al., 2024, arXiv:2402.14740.

    Example:
        >>> leave_one_out(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64))
        tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
        >>> one, two = torch.zeros(3, dtype=torch.int64), torch.tensor([0, 0, 1])
        >>> leave_one_out(torch.tensor([1.0, 1.0, 0.0]), one, sample=two)
        tensor([ 1.,  1., -1.])
    """
    check_rows(score=score, group=group, entry=entry, sample=sample, agent=agent, valid=valid)
    check_integers(group=group, entry=entry, sample=sample, agent=agent)
    check_singleton(singleton, agent)
    rows = usable_rows(score, valid)
    excess = partial(
        _excess_over_others, pick(score, rows), entry=pick(entry, rows), sample=pick(sample, rows)
    )
    advantage, value, alone = excess(pick(group, rows))
    if singleton == "raw":
        advantage = torch.where(alone, value, advantage)
    elif singleton == "agent_batch" and agent is not None:
        advantage = torch.where(alone, excess(pick(agent, rows))[0], advantage)
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


def reinforce_plus_plus(
    score: Tensor, group: Tensor | None = None, *, part: Tensor | None = None, valid: Tensor | None = None
) -> Tensor:
    """Whiten scores, after subtracting the mean of their group if groups are given.

    Args:
        score: (N,) scores.
        group: (N,) group ids for the baseline variant, ``None`` for the plain one. Rows of groups of one or of equal scores are centred
            to 0; they count in what is whitened, but their advantage is exactly 0.
        part: (N,) ids of the rows that are whitened together; ``None`` whitens the whole batch.
        valid: (N,) bool, False on padding and repeated rows.

    Returns:
        (N,) float32 advantages; non-finite and invalid rows 0.

    Raises:
        ValueError: Shapes or ids do not fit.

    References:
        Hu, 2025, arXiv:2501.03262.

    Example:
        >>> reinforce_plus_plus(torch.tensor([1.0, 0.0, 0.0, 1.0]))
        tensor([ 0.8660, -0.8660, -0.8660,  0.8660])
        >>> reinforce_plus_plus(torch.tensor([1.0, 0.0, 5.0, 5.0]), torch.tensor([0, 0, 1, 1]))
        tensor([ 1.2247, -1.2247,  0.0000,  0.0000])
    """
    check_rows(score=score, group=group, part=part, valid=valid)
    check_integers(group=group, part=part)
    rows = usable_rows(score, valid)
    value = score[rows].to(torch.float64)
    dead = torch.zeros_like(value, dtype=torch.bool)
    if group is not None:
        scope = scope_statistics(value, group[rows])
        dead = scope.constant | scope.alone
        value = (value - scope.mean).masked_fill(dead, 0.0)
    parts = torch.zeros_like(rows) if part is None else part[rows]
    white = torch.zeros_like(value, dtype=torch.float32)
    for number in parts.unique():
        white += whiten(value, parts == number)
    return spread(white.masked_fill(dead, 0.0), rows, score.numel())


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
    size = segment_count(group)
    solved = segment_sum(success, group).to(torch.int64)
    best = pass_at_k(size, solved, k=k)
    std = (best * (1 - best)).sqrt()
    # A failed row's subset draws its k − 1 companions from the other n − 1 rows: C(m−1, k−1)/C(n−1, k−1) = C(m, k)/C(n, k)·n/m.
    best_with_failure = 1 - (1 - best) * size / (size - solved).clamp_min(1)
    excess = torch.where(wins, 1 - best[group], (best_with_failure - best)[group])
    signal = std[group] > 0
    return torch.where(signal, excess / torch.where(signal, std[group], 1.0), 0.0).to(torch.float32)


def _excess_over_others(
    score: Tensor, group: Tensor, *, entry: Tensor | None, sample: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compare entries with the other entries or samples of their group.

    Returns:
        Score minus the mean of the others, 0 in groups of one or of equal entries; the score; and whether there are no others.
    """
    own = scope_statistics(score, group, entry=entry)
    peers = own if sample is None else scope_statistics(score, group, entry=sample)
    # the mean without the own sample: μ − (v − μ)/(n − 1)
    others = peers.mean - (peers.value - peers.mean) / (peers.count - 1).clamp_min(1)
    return (own.value - others).masked_fill(peers.alone | own.constant, 0.0), own.value, peers.alone
