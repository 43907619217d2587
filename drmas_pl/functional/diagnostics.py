"""What to watch: gradient amplification per agent, groups without signal, effective sample size. From rewards alone.

Legend: N rows, K agents, (μ_k, σ_k) moments of agent k's rows, (m, s) those the advantage was normalised with, λ amplification.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from drmas_pl.functional.advantages import SingletonRule, standardize
from drmas_pl.functional.checks import check_ids, check_integers, check_rows
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.scopes import nearly_equal, pick, scope_statistics, usable_rows
from drmas_pl.functional.segments import (
    segment_count,
    segment_max,
    segment_min,
    segment_sum,
)


def amplification(
    score: Tensor,
    agent: Tensor,
    mean_group: Tensor,
    std_group: Tensor | None,
    *,
    entry: Tensor | None = None,
    valid: Tensor | None = None,
    num_agents: int | None = None,
    min_std: float = 0.0,
    clip: float | None = None,
    singleton: SingletonRule = "zero",
) -> Tensor:
    """Compute the factor by which normalisation scales each agent's gradient second moment.

    λ_k is the mean of the agent's squared advantages with population moments (ddof 0, eps 0). Without floor and clip it is
    ``(σ_k² + (μ_k − m)²)/s²`` per combination of agent, mean group and std group, averaged over the agent's rows, which is 1 when
    both groups hold the agent alone. Rows of groups without signal are left out, as their advantages are 0 by rule.

    Args:
        score: (N,) scores.
        agent: (N,) agent ids.
        mean_group: (N,) ids of the groups that were centred.
        std_group: (N,) ids of the groups that were scaled, or ``None`` for s = 1.
        entry: (N,) trajectory ids if the unit was the trajectory.
        valid: (N,) bool, False on padding and repeated rows.
        num_agents: K; by default the largest agent id plus one.
        min_std: Floor of s.
        clip: Bound on the absolute advantage, or ``None``.
        singleton: Treatment of groups of one entry, see :func:`~drmas_pl.functional.advantages.group_normalize`.

    Returns:
        (K,) float64; NaN for agents without a row that carries signal.

    Raises:
        ValueError: Shapes or ids do not fit.

    References:
        Dr. MAS, 2026, arXiv:2602.08847.

    Example:
        >>> score, agent, task = torch.tensor([1.0, 0.0, 0.2, 0.0]), torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.int64)
        >>> amplification(score, agent, task, task)
        tensor([1.7059, 0.2941], dtype=torch.float64)
        >>> amplification(score, agent, agent, agent)
        tensor([1., 1.], dtype=torch.float64)
    """
    check_rows(score=score, agent=agent, mean_group=mean_group, std_group=std_group, entry=entry, valid=valid)
    check_integers(mean_group=mean_group, std_group=std_group, entry=entry)
    check_ids(agent=agent)
    size = num_agents if num_agents is not None else (int(agent.max()) + 1 if agent.numel() else 0)
    rows = usable_rows(score, valid)
    agent = agent[rows]
    by_group = partial(scope_statistics, score[rows], entry=pick(entry, rows), ddof=0)
    batch = by_group(agent) if singleton == "agent_batch" else None
    location = by_group(mean_group[rows])
    scale = None if std_group is None else by_group(std_group[rows])
    advantage, dead = standardize(location, scale, batch, rule=singleton, floor=min_std, eps=0.0)
    if clip is not None:
        advantage = advantage.clamp(-clip, clip)
    return segment_sum(advantage.square(), agent, num_groups=size) / segment_sum(
        ~dead, agent, num_groups=size
    )


def global_amplification(
    score: Tensor,
    agent: Tensor,
    task: Tensor,
    *,
    num_agents: int | None = None,
    min_std: float = 0.0,
    clip: float | None = None,
) -> Tensor:
    """Compute λ_k of the counterfactual in which all agents of a task share one mean and one standard deviation.

    Args:
        score: (N,) scores.
        agent: (N,) agent ids.
        task: (N,) task ids.
        num_agents: K; by default the largest agent id plus one.
        min_std: Floor of the standard deviation.
        clip: Bound on the absolute advantage, or ``None``.

    Returns:
        (K,) float64; NaN for agents without a row that carries signal.

    Raises:
        ValueError: Shapes or ids do not fit.

    Example:
        >>> global_amplification(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([0, 0]))
        tensor([1.], dtype=torch.float64)
    """
    return amplification(score, agent, task, task, num_agents=num_agents, min_std=min_std, clip=clip)


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """Shares of an agent's groups, (K,) float64 in [0, 1], NaN for agents without a usable row.

    Attributes:
        all_zero: Every score is 0.
        all_one: Every score is 1.
        all_equal: Two or more scores, all equal: no signal.
        singleton: A single score.
        non_finite: (K,) int64 number of rows with a non-finite score, which no group counts.
    """

    all_zero: Tensor
    all_one: Tensor
    all_equal: Tensor
    singleton: Tensor
    non_finite: Tensor


def group_health(
    score: Tensor, group: Tensor, agent: Tensor, *, num_agents: int | None = None
) -> GroupHealth:
    """Measure which share of each agent's groups carries no signal; a group is an agent's rows within ``group``.

    Args:
        score: (N,) scores or rewards.
        group: (N,) group ids.
        agent: (N,) agent ids.
        num_agents: K; by default the largest agent id plus one.

    Returns:
        Shares per agent.

    Raises:
        ValueError: Shapes or ids do not fit.

    Example:
        >>> health = group_health(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]))
        >>> health.all_one.item(), health.all_equal.item(), health.singleton.item()
        (0.5, 0.5, 0.5)
    """
    check_rows(score=score, group=group, agent=agent)
    check_integers(group=group)
    check_ids(agent=agent)
    size = num_agents if num_agents is not None else (int(agent.max()) + 1 if agent.numel() else 0)
    rows = usable_rows(score)
    cell = group_ids(agent[rows], group[rows])
    low = segment_min(score[rows], cell)
    high = segment_max(score[rows], cell)
    count = segment_count(cell)
    owner = torch.empty_like(count).scatter_(0, cell, agent[rows])
    equal = nearly_equal(low, high)

    def share(found: Tensor) -> Tensor:
        return segment_sum(found, owner, num_groups=size) / segment_count(owner, num_groups=size)

    return GroupHealth(
        all_zero=share(
            equal & nearly_equal(low, torch.zeros_like(low)) & nearly_equal(torch.zeros_like(low), low)
        ),
        all_one=share(
            equal & nearly_equal(low, torch.ones_like(low)) & nearly_equal(torch.ones_like(low), low)
        ),
        all_equal=share(equal & (count > 1)),
        singleton=share(count == 1),
        non_finite=segment_count(agent[~score.isfinite()], num_groups=size),
    )


def has_signal(score: Tensor, group: Tensor) -> Tensor:
    """Tell which rows lie in a group whose scores are not all equal, the test that dynamic sampling filters by.

    Args:
        score: (N,) scores; non-finite ones are ignored and carry no signal themselves.
        group: (N,) group ids.

    Returns:
        (N,) bool.

    Raises:
        ValueError: Shapes or ids do not fit.

    References:
        Yu et al., 2025 (DAPO), dynamic sampling, arXiv:2503.14476.

    Example:
        >>> has_signal(torch.tensor([0.9, 0.9, 1.0, 0.0, 0.5]), torch.tensor([0, 0, 1, 1, 2]))
        tensor([False, False,  True,  True, False])
    """
    check_rows(score=score, group=group)
    check_integers(group=group)
    rows = usable_rows(score)
    scope = scope_statistics(score[rows], group[rows])
    result = torch.zeros_like(score, dtype=torch.bool)
    result[rows] = ~(scope.constant | scope.alone)
    return result


def effective_sample_size(weight: Tensor) -> Tensor:
    """Count how many equally weighted samples the weights are worth: ``(Σw)²/Σw²``.

    Args:
        weight: (N,) non-negative weights.

    Returns:
        Scalar in [0, N]; 0 if all weights are 0.

    References:
        Kong, 1992.

    Example:
        >>> effective_sample_size(torch.tensor([1.0, 1.0, 0.0]))
        tensor(2.)
    """
    square = weight.square().sum()
    return weight.sum().square() / torch.where(square > 0, square, 1.0)
