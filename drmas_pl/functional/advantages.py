"""Group-normalised advantages: one scalar per row from scores and two group scopes.

This is the normaliser behind GRPO, Dr.GRPO, Dr. MAS, its ablations and AT-GRPO: they differ only in the columns that make up
``mean_group`` and ``std_group`` and in the unit of an entry. The function never learns what an agent is, except to fall back on
that agent's batch statistics for groups of one.

Groups of one entry follow the rule ``singleton``, for the mean and for the standard deviation independently:

- ``zero``: A = 0 if either of the two groups is a singleton;
- ``raw``: a singleton mean group has μ = 0, a singleton std group σ = 1;
- ``agent_batch``: the missing statistic is that of all entries of the row's agent; A = 0 where that agent has fewer than two
  entries or only equal ones.

References: Shao et al., 2024 (GRPO), arXiv:2402.03300; Liu et al., 2025 (Dr.GRPO), arXiv:2503.20783; Dr. MAS, 2026,
arXiv:2602.08847; Zhao et al., 2025 (AT-GRPO), arXiv:2510.11062.

Legend: N rows (one per turn), s score, μ and σ mean and standard deviation of a row's groups, A advantage.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_choice, check_integers, check_range, check_rows
from drmas_pl.functional.scopes import ScopeStatistics, pick, scope_statistics, spread, usable_rows

SingletonRule = Literal["zero", "raw", "agent_batch"]


def group_normalize(
    score: Tensor,
    mean_group: Tensor,
    std_group: Tensor | None,
    *,
    entry: Tensor | None = None,
    agent: Tensor | None = None,
    valid: Tensor | None = None,
    ddof: int = 1,
    eps: float = 1e-6,
    min_std: float = 0.0,
    clip: float | None = None,
    singleton: SingletonRule = "zero",
) -> Tensor:
    """Subtract a group's mean from each score and divide by a group's standard deviation.

    ``A = (s − μ[mean_group]) / (max(σ[std_group], min_std) + eps)``. Rows whose mean group or std group has only equal entries
    get exactly 0, whatever the floor. Rows with a non-finite score get 0 and enter no statistic.

    Args:
        score: (N,) scores.
        mean_group: (N,) integer ids of the groups that are centred.
        std_group: (N,) integer ids of the groups that are scaled, or ``None`` for the numerator alone.
        entry: (N,) trajectory ids if the unit is the trajectory: its rows inside one group are averaged to one entry.
        agent: (N,) agent ids, needed by ``agent_batch`` only.
        valid: (N,) bool, False on padding and repeated rows: no statistic, advantage 0.
        ddof: 1 for the sample standard deviation, 0 for the population's.
        eps: Added to the standard deviation, in score units.
        min_std: Floor of the standard deviation, in score units, against blowing up tiny penalties.
        clip: Bound on ``|A|``, or ``None``.
        singleton: What to do with groups of one entry, see the module's docstring.

    Returns:
        (N,) float32 advantages.

    Raises:
        ValueError: Shapes or ids do not fit, a number is out of range, or ``agent_batch`` lacks ``agent``.

    Example:
        >>> task = torch.zeros(4, dtype=torch.int64)
        >>> group_normalize(torch.tensor([1.0, 0.0, 0.0, 0.0]), task, task)
        tensor([ 1.5000, -0.5000, -0.5000, -0.5000])
    """
    check_rows(score=score, mean_group=mean_group, std_group=std_group, entry=entry, agent=agent, valid=valid)
    check_integers(mean_group=mean_group, std_group=std_group, entry=entry, agent=agent)
    _check_settings(ddof, eps=eps, min_std=min_std, clip=clip)
    check_singleton(singleton, agent)
    rows = usable_rows(score, valid)
    by_group = partial(scope_statistics, pick(score, rows), entry=pick(entry, rows), ddof=ddof)
    batch = by_group(pick(agent, rows)) if agent is not None and singleton == "agent_batch" else None
    location = by_group(pick(mean_group, rows))
    scale = (
        None
        if std_group is None
        else location
        if std_group is mean_group
        else by_group(pick(std_group, rows))
    )
    advantage, _ = standardize(location, scale, batch, rule=singleton, floor=min_std, eps=eps)
    return spread(advantage if clip is None else advantage.clamp(-clip, clip), rows, score.numel())


def resolve_singletons(
    scope: ScopeStatistics, rule: SingletonRule, batch: ScopeStatistics | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Fill in mean and std of groups of one entry, and mark the rows that carry no signal.

    Args:
        scope: Statistics of one scope.
        rule: See :func:`group_normalize`.
        batch: Statistics of each row's agent over the batch; needed by ``agent_batch`` only.

    Returns:
        Mean (M,), std (M,), and (M,) bool that is True where the advantage must be exactly 0.

    Example:
        >>> scope = scope_statistics(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0, 0, 1]))
        >>> mean, std, dead = resolve_singletons(scope, "raw", None)
        >>> mean.tolist(), dead.tolist()
        ([0.5, 0.5, 0.0], [False, False, False])
    """
    alone = scope.alone
    if rule == "raw":
        return scope.mean.masked_fill(alone, 0.0), scope.std.masked_fill(alone, 1.0), scope.constant
    if batch is None:
        return scope.mean, scope.std, scope.constant | alone
    dead = scope.constant | (alone & (batch.constant | batch.alone))
    return torch.where(alone, batch.mean, scope.mean), torch.where(alone, batch.std, scope.std), dead


def check_singleton(rule: str, agent: Tensor | None) -> None:
    """Check a singleton rule and that it has what it needs.

    Args:
        rule: Name of the rule.
        agent: (N,) agent ids, or ``None``.

    Raises:
        ValueError: The rule is unknown, or is ``agent_batch`` without agent ids.

    Example:
        >>> check_singleton("agent_batch", None)
        Traceback (most recent call last):
        ValueError: singleton='agent_batch' expects agent ids, got None; pass agent= or choose 'zero' or 'raw'
    """
    check_choice("singleton", rule, get_args(SingletonRule))
    if rule == "agent_batch" and agent is None:
        raise ValueError(
            "singleton='agent_batch' expects agent ids, got None; pass agent= or choose 'zero' or 'raw'"
        )


def standardize(
    location: ScopeStatistics,
    scale: ScopeStatistics | None,
    batch: ScopeStatistics | None,
    *,
    rule: SingletonRule,
    floor: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Centre with one scope and scale with another; rows without signal in either give exactly 0.

    Args:
        location: Statistics of the scope that is centred.
        scale: Statistics of the scope that is scaled; ``None`` divides by nothing.
        batch: Statistics of each row's agent over the batch; needed by ``agent_batch`` only.
        rule: See :func:`group_normalize`.
        floor: Least standard deviation.
        eps: Added to it.

    Returns:
        (M,) advantages, and (M,) bool that is True on rows without signal.

    Example:
        >>> scope = scope_statistics(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0, 0, 1]), ddof=0)
        >>> advantage, dead = standardize(scope, scope, None, rule="zero", floor=0.0, eps=0.0)
        >>> advantage.tolist(), dead.tolist()
        ([1.0, -1.0, 0.0], [False, False, True])
    """
    mean, _, dead = resolve_singletons(location, rule, batch)
    advantage = location.value - mean
    if scale is not None:
        _, std, flat = resolve_singletons(scale, rule, batch)
        advantage = advantage / (std.clamp_min(floor) + eps)
        dead = dead | flat
    return advantage.masked_fill(dead, 0.0), dead


def _check_settings(ddof: int, *, eps: float, min_std: float, clip: float | None) -> None:
    """Check the numbers of group_normalize."""
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 (population) or 1 (sample), got {ddof}")
    check_range("eps", eps, low=0.0)
    check_range("min_std", min_std, low=0.0)
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be positive or None, got {clip}")
