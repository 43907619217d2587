"""Discounted sums over the turns of a trajectory, by a dense (trajectory, step) table and one backward pass over steps.

Legend: N rows, B trajectories, S steps, γ discount.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drmas_pl.functional.advantages import group_normalize
from drmas_pl.functional.checks import check_ids, check_integers, check_range, check_rows
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.segments import segment_count, segment_sum


def return_to_go(reward: Tensor, trajectory: Tensor, step: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Sum the discounted rewards of a trajectory from each row's step on: ``Σ γ^(t' − t)·r[t']`` over t' ≥ t.

    Rows of one trajectory and step share one return; their rewards are added. A non-finite reward spoils the rows before it,
    which the normalisers then leave out.

    Args:
        reward: (N,) reward that a row itself earned; a final team reward belongs on one row of the last step.
        trajectory: (N,) trajectory ids; add the player to the key for returns per player.
        step: (N,) index of the turn or environment step, from 0; gaps discount like empty steps.
        gamma: γ in [0, 1].

    Returns:
        (N,) float32.

    Raises:
        ValueError: Shapes or ids do not fit, or γ is outside [0, 1].

    Example:
        >>> return_to_go(torch.tensor([0.0, 1.0]), torch.tensor([0, 0]), torch.tensor([0, 1]), gamma=0.95)
        tensor([0.9500, 1.0000])
    """
    grid = _Grid.build(reward, trajectory, step)
    check_range("gamma", gamma, low=0.0, high=1.0)
    return grid.discount(grid.total(reward), gamma).to(torch.float32)


def discounted_team_future(reward: Tensor, trajectory: Tensor, step: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Average a row's own reward and the team's mean rewards in later steps, nearer steps counting more.

    ``(r + Σ γ^(t' − t)·r̄[t']) / Σ γ^(t' − t)``: the upper sum runs over the later steps t' > t that the trajectory has, the lower one
    over t as well; r̄ is the mean over the rows (agents) of a step.

    Args:
        reward: (N,) reward per row.
        trajectory: (N,) trajectory ids.
        step: (N,) index of the turn, from 0.
        gamma: γ in [0, 1].

    Returns:
        (N,) float32.

    Raises:
        ValueError: Shapes or ids do not fit, or γ is outside [0, 1].

    References:
        Park et al., 2025 (MAPoRL), arXiv:2502.18439.

    Example:
        >>> own, step = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1])
        >>> discounted_team_future(own, torch.zeros(4, dtype=torch.int64), step, gamma=0.5)
        tensor([0.8333, 0.1667, 0.0000, 1.0000])
    """
    grid = _Grid.build(reward, trajectory, step)
    check_range("gamma", gamma, low=0.0, high=1.0)
    mean = grid.total(reward) / grid.count.clamp_min(1)
    present = (grid.count > 0).to(torch.float64)
    later = grid.discount(mean, gamma) - mean.reshape(-1)[grid.slot]
    return ((reward.to(torch.float64) + later) / grid.discount(present, gamma)).to(torch.float32)


def player_return_advantage(
    reward: Tensor, trajectory: Tensor, step: Tensor, *, player: Tensor, gamma: float = 1.0, eps: float = 1e-6
) -> Tensor:
    """Normalise each player's return-to-go over all rows of the same (game, player).

    Args:
        reward: (N,) reward that a row itself earned for its player.
        trajectory: (N,) trajectory ids.
        step: (N,) index of the turn, from 0.
        player: (N,) ids of (game, player).
        gamma: γ in [0, 1].
        eps: Added to the standard deviation.

    Returns:
        (N,) float32 advantages.

    Raises:
        ValueError: Shapes or ids do not fit, or γ is outside [0, 1].

    References:
        Yuan et al., 2025 (MARSHAL), arXiv:2510.15414.

    Example:
        >>> zero = torch.tensor([0, 0])
        >>> player_return_advantage(torch.tensor([1.0, -1.0]), torch.tensor([0, 1]), zero, player=zero, eps=0.0)
        tensor([ 0.7071, -0.7071])
    """
    check_rows(reward=reward, player=player)
    returns = return_to_go(reward, group_ids(trajectory, player), step, gamma=gamma)
    return group_normalize(returns, player, player, eps=eps)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where each row stands in a dense (B, S) table."""

    slot: Tensor
    shape: tuple[int, int]
    count: Tensor

    @classmethod
    def build(cls, reward: Tensor, trajectory: Tensor, step: Tensor) -> _Grid:
        """Lay the rows out; steps are indices, so S is the longest trajectory."""
        check_rows(reward=reward, trajectory=trajectory, step=step)
        check_integers(trajectory=trajectory)
        check_ids(step=step)
        dense = group_ids(trajectory)
        shape = (int(dense.max()) + 1, int(step.max()) + 1) if dense.numel() else (0, 0)
        slot = dense * shape[1] + step
        return cls(slot, shape, segment_count(slot, num_groups=shape[0] * shape[1]).view(shape))

    def total(self, value: Tensor) -> Tensor:
        """Add up the rows of each slot: (B, S) float64."""
        return segment_sum(value, self.slot, num_groups=self.shape[0] * self.shape[1]).view(self.shape)

    def discount(self, table: Tensor, gamma: float) -> Tensor:
        """Accumulate a (B, S) table backwards over steps and read each row's slot: (N,) float64."""
        result = torch.empty_like(table)
        future = table.new_zeros(self.shape[0])
        for step in range(self.shape[1] - 1, -1, -1):
            future = table[:, step] + gamma * future
            result[:, step] = future
        return result.reshape(-1)[self.slot]
