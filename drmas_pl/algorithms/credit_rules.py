"""Credit rules: what each turn of a team is credited with, before penalties and before any normalisation.

A rule maps a batch of all turns to one number per turn; :meth:`Agent.score` then takes the penalty of an unusable turn from it.

Legend: N rows, γ discount, α weight of the team reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drmas_pl.algorithms.turn_batch import CreditRule, TeamReward, TurnBatch
from drmas_pl.errors import ConfigError
from drmas_pl.functional.checks import check_range
from drmas_pl.functional.credit import zero_sum_split
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.returns import discounted_team_future, return_to_go

# the default rule is beside the batch, which is credited when it is built
__all__ = ["CreditRule", "ReturnToGo", "TeamFuture", "TeamReward", "ZeroSum"]


@dataclass(frozen=True, slots=True)
class ReturnToGo:
    """What the team, and the speaker alone, earn from the turn on; what was earned before it is not credited.

    Discounting counts moves, so that of two teammates in one environment step the later one is nearer to the reward, and agents that move
    at once are equally near. What the environment pays an agent alone counts with the agent's latest turn.

    Attributes:
        gamma: γ in [0, 1].

    References:
        Yuan et al., 2025 (MARSHAL), arXiv:2510.15414.
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_range("gamma", self.gamma, low=0.0, high=1.0)

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float64."""
        team = return_to_go(batch.reward, batch.trajectory, batch.move, gamma=self.gamma)
        speaker = group_ids(batch.trajectory, batch.agent)
        own = return_to_go(batch.own_reward + batch.local, speaker, batch.move, gamma=self.gamma)
        return (team + own).to(torch.float64)


@dataclass(frozen=True, slots=True)
class TeamFuture:
    """The discounted average of what a turn earns itself and of what the team's members earn on average in later environment steps.

    Attributes:
        gamma: γ in [0, 1].

    References:
        Park et al., 2025 (MAPoRL), arXiv:2502.18439.
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_range("gamma", self.gamma, low=0.0, high=1.0)

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float64."""
        # the team reward of a step belongs to everybody who spoke in it, not to the last one alone
        cell = group_ids(batch.trajectory, batch.step)
        earned = torch.zeros(int(cell.max()) + 1 if len(batch) else 0, dtype=torch.float64).index_add_(
            0, cell, batch.reward
        )
        return discounted_team_future(
            earned[cell] + batch.own_reward + batch.local, batch.trajectory, batch.step, gamma=self.gamma
        ).to(torch.float64)


@dataclass(frozen=True, slots=True)
class ZeroSum:
    """A reward s in [0, 1] to every agent but the critics, who get 1 − s; local rewards come on top.

    Where the environment pays single agents, each gets what it was paid, and no reward is split.

    Attributes:
        critics: Names of the agents that play against the others.

    Raises:
        ValueError: There are no critics, or later, an unknown one, or a reward outside [0, 1].

    References:
        Xue et al., 2025 (CoMAS), arXiv:2510.08529.
    """

    critics: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.critics, str) or not self.critics:
            raise ValueError(
                f"critics must list at least one agent, got {self.critics!r}; write [verifier] for example"
            )

    @property
    def named_agents(self) -> Sequence[str]:
        """Return the critics; the team must have them."""
        return self.critics

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float64."""
        unknown = [name for name in self.critics if name not in batch.names]
        if unknown:
            raise ValueError(f"critics must name agents out of {list(batch.names)}, got {unknown}")
        try:
            solver, critic = zero_sum_split(torch.where(batch.by_agent, 0.0, batch.team))
        except ValueError as error:
            raise ConfigError(
                f"credit=zero_sum splits rewards in [0, 1], which this environment does not keep to: {error}; choose another rule"
            ) from error
        against = torch.tensor(
            [batch.names[place] in self.critics for place in batch.agent.tolist()], dtype=torch.bool
        )
        return torch.where(batch.by_agent, batch.own, torch.where(against, critic, solver)) + batch.local
