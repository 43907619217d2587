"""Credit rules of teams: who gets which share of a reward. All compose with the normalisers.

Legend: N rows, C codes, U unit tests, A advantage. Separate groups for main and sub agents need no rule: add the column
"is a sub-agent" to the group key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drmas_pl.functional.advantages import group_normalize
from drmas_pl.functional.checks import check_integers, check_range, check_rows
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.scopes import scope_statistics, spread, usable_rows
from drmas_pl.functional.segments import segment_count, segment_sum


def mix_rewards(team: Tensor, local: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Add an agent's local reward to a share of the team's: ``α·team + local``.

    Args:
        team: (N,) reward of the team.
        local: (N,) reward of the row's agent.
        alpha: Weight of the team reward, at least 0.

    Returns:
        (N,) in the dtype of the inputs.

    Raises:
        ValueError: Shapes differ, or α is negative.

    References:
        Zhao et al., 2025 (AT-GRPO), arXiv:2510.11062.

    Example:
        >>> mix_rewards(torch.tensor([1.0, 0.0]), torch.tensor([0.2, 0.2]), alpha=0.5)
        tensor([0.7000, 0.2000])
    """
    check_rows(team=team, local=local)
    check_range("alpha", alpha, low=0.0)
    return alpha * team + local


def inherit_advantage(advantage: Tensor, parent: Tensor) -> Tensor:
    """Give every row the advantage of its topmost ancestor, so that sub-agents share the fate of whoever called them.

    Args:
        advantage: (N,) advantages; only those of rows without a parent are used.
        parent: (N,) row index of the caller, −1 for none.

    Returns:
        (N,) advantages.

    Raises:
        ValueError: A parent index is out of range, or parents form a circle.

    References:
        Mo et al., 2025 (MATPO), arXiv:2510.04678.

    Example:
        >>> inherit_advantage(torch.tensor([1.0, 0.0, 0.0, -1.0]), torch.tensor([-1, 0, 1, -1]))
        tensor([ 1.,  1.,  1., -1.])
    """
    check_rows(advantage=advantage, parent=parent)
    root, _ = _climb(parent)
    return advantage[root]


def propagate_values(value: Tensor, parent: Tensor) -> Tensor:
    """Give every inner node of a sampling tree the mean value of its children.

    Args:
        value: (N,) values; only those of leaves are used.
        parent: (N,) index of each node's parent, −1 for roots.

    Returns:
        (N,) float32 node values.

    Raises:
        ValueError: A parent index is out of range, or parents form a circle.

    References:
        Motwani et al., 2024 (MALT), arXiv:2412.01928.

    Example:
        >>> propagate_values(torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0]), torch.tensor([-1, 0, 0, 1, 1]))
        tensor([0.7500, 0.5000, 1.0000, 0.0000, 1.0000])
    """
    check_rows(value=value, parent=parent)
    _, depth = _climb(parent)
    children = segment_count(parent[parent >= 0], num_groups=parent.numel())
    result = torch.where(children > 0, 0.0, value.to(torch.float64))
    for level in range(int(depth.max()) if depth.numel() else 0, 0, -1):
        nodes = (depth == level).nonzero().squeeze(-1)
        result.index_add_(0, parent[nodes], result[nodes] / children[parent[nodes]])
    return result.to(torch.float32)


def zero_sum_split(score: Tensor) -> tuple[Tensor, Tensor]:
    """Split a score in [0, 1] between a solver, who gets s, and a critic, who gets 1 − s.

    Args:
        score: (N,) scores in [0, 1]; NaN stays NaN on both sides.

    Returns:
        Solver's and critic's scores, (N,) each.

    Raises:
        ValueError: A score is outside [0, 1].

    References:
        Xue et al., 2025 (CoMAS), arXiv:2510.08529.

    Example:
        >>> zero_sum_split(torch.tensor([1.0, 0.25]))
        (tensor([1.0000, 0.2500]), tensor([0.0000, 0.7500]))
    """
    if bool(((score < 0) | (score > 1)).any()):
        raise ValueError(
            f"score must be in [0, 1], got {float(score[(score < 0) | (score > 1)][0])}; rescale it first"
        )
    return score, 1 - score


def cross_execution(passed: Tensor, gold_pass_rate: Tensor, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Score codes and generated unit tests of one task against each other.

    A code is correct if it passes every gold test; its score is its gold pass rate, standardised over the task's codes. A
    test's sign says whether every correct code passes it. Its magnitude is the share of wrong codes on which it disagrees
    with what it says about the correct ones: wrong codes it rejects for a valid test, wrong codes it lets through otherwise.
    Without a correct code tests cannot be scored and score 0.

    Args:
        passed: (C, U) bool, whether a code passes a generated test.
        gold_pass_rate: (C,) share of gold tests passed, in [0, 1].
        eps: Added to the standard deviation of the codes' pass rates.

    Returns:
        (C,) scores of the codes and (U,) scores in [−1, 1] of the tests, float32.

    Raises:
        ValueError: Shapes do not fit.

    References:
        Wang et al., 2025 (CURE), arXiv:2506.03136.

    Example:
        >>> passed = torch.tensor([[True, False, True], [False, False, True], [False, True, True]])
        >>> coder, tester = cross_execution(passed, torch.tensor([1.0, 0.0, 0.5]), eps=0.0)
        >>> coder.tolist(), tester.tolist()
        ([1.0, -1.0, 0.0], [1.0, -0.5, 0.0])
    """
    if passed.dim() != 2 or gold_pass_rate.shape != passed.shape[:1]:
        shapes = f"{tuple(passed.shape)} and {tuple(gold_pass_rate.shape)}"
        raise ValueError(
            f"passed and gold_pass_rate must be (C, U) and (C,), got {shapes}; pass one row per code of one task"
        )
    everyone = torch.zeros_like(gold_pass_rate, dtype=torch.int64)
    coder = group_normalize(gold_pass_rate, everyone, everyone, eps=eps)
    passed = passed.to(torch.bool)
    correct = gold_pass_rate >= 1
    valid = passed[correct].all(dim=0)
    wrong = passed[~correct].to(torch.float32)
    let_through = wrong.sum(dim=0) / max(len(wrong), 1)
    rejected = (1 - wrong).sum(dim=0) / max(len(wrong), 1)
    tester = torch.where(valid, rejected, -let_through)
    return coder, tester if bool(correct.any()) else torch.zeros_like(tester)


def standardize_per_task(
    advantage: Tensor,
    source: Tensor,
    *,
    tokens: Tensor | None = None,
    valid: Tensor | None = None,
    signal: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Standardise advantages within each task family of a mixture, so that no family drowns another.

    Args:
        advantage: (N,) advantages.
        source: (N,) ids of the task family.
        tokens: (N,) trained tokens per row, to standardise over tokens; ``None`` counts every row once.
        valid: (N,) bool, False on padding and repeated rows.
        signal: (N,) bool, False on rows of groups without learning signal: they count in the statistics, but stay exactly 0.
        eps: Added to the (population) standard deviation.

    Returns:
        (N,) float32; families with a single value or only equal ones give 0.

    Raises:
        ValueError: Shapes or ids do not fit.

    References:
        Zhang et al., 2025 (AgentRL), task advantage normalisation, arXiv:2510.04206.

    Example:
        >>> standardize_per_task(torch.tensor([1.0, -1.0, 9.0, 3.0]), torch.tensor([0, 0, 1, 1]), eps=0.0)
        tensor([ 1., -1.,  1., -1.])
    """
    check_rows(advantage=advantage, source=source, tokens=tokens, valid=valid, signal=signal)
    check_integers(source=source)
    rows = usable_rows(advantage, valid)
    value = advantage[rows].to(torch.float64)
    group = group_ids(source[rows])
    weight = torch.ones_like(value) if tokens is None else tokens[rows].to(torch.float64)
    total = segment_sum(weight, group).clamp_min(1.0)
    deviation = value - (segment_sum(weight * value, group) / total)[group]
    std = (segment_sum(weight * deviation.square(), group) / total).sqrt()[group]
    scope = scope_statistics(value, group)
    dead = scope.constant | scope.alone
    if signal is not None:
        dead = dead | ~signal[rows].to(torch.bool)
    return spread((deviation / (std + eps)).masked_fill(dead, 0.0), rows, advantage.numel())


def _climb(parent: Tensor) -> tuple[Tensor, Tensor]:
    """Find each row's topmost ancestor and its depth below it."""
    size = parent.numel()
    if size and not (int(parent.min()) >= -1 and int(parent.max()) < size):
        raise ValueError(
            f"parent must hold row indices in [0, {size}) or -1, got {int(parent.min())} to {int(parent.max())}"
        )
    root = torch.arange(size, device=parent.device)
    depth = torch.zeros_like(root)
    for _ in range(size):
        above = parent[root]
        moving = above >= 0
        if not bool(moving.any()):
            return root, depth
        root = torch.where(moving, above, root)
        depth = depth + moving
    if size:
        raise ValueError("parent must form a forest, got a circle; a row cannot be its own ancestor")
    return root, depth
