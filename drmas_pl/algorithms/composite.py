"""Estimators around another estimator: sub-agents inherit from their caller, task families are put on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drmas_pl.algorithms.estimators import AdvantageEstimator
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.functional.credit import inherit_advantage, standardize_per_task
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.segments import segment_max


@dataclass(frozen=True)
class Wrapper(AdvantageEstimator):
    """Changes the advantages of another estimator.

    Attributes:
        inner: The estimator; it must give one advantage per turn.
    """

    inner: AdvantageEstimator

    def __post_init__(self) -> None:
        if self.inner.needs_values:
            raise ValueError(
                f"{type(self).__name__} needs one advantage per turn, but {type(self.inner).__name__} gives one per token"
            )

    @property
    def named_agents(self) -> Sequence[str]:
        """Return the agents that the inner estimator names."""
        return self.inner.named_agents

    def state_dict(self) -> dict[str, Any]:
        """Return the inner estimator's state."""
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the inner estimator its state."""
        self.inner.load_state_dict(state)

    def advantages(self, batch: TurnBatch) -> Tensor:
        """Return (N,) advantages of the inner estimator."""
        found = self.inner(batch)
        assert isinstance(found, Tensor)
        return found


@dataclass(frozen=True)
class Inherited(Wrapper):
    """Turns of sub-agents take the advantage of the turn that called them (MATPO).

    Attributes:
        parents: Caller by sub-agent; a sub-agent's caller is the latest earlier turn of that agent in the trajectory, and a turn without
            one keeps its own advantage.

    Raises:
        ValueError: ``parents`` is empty, or names an agent that is not in the team when advantages are computed.

    References:
        Mo et al., 2025 (MATPO), arXiv:2510.04678.
    """

    parents: Mapping[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parents:
            raise ValueError(
                "parents must name the caller of at least one agent, got none; write {search: verifier} for example"
            )

    @property
    def named_agents(self) -> Sequence[str]:
        """Return sub-agents and callers."""
        return (*self.parents, *self.parents.values(), *super().named_agents)

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float32 advantages."""
        unknown = sorted({*self.parents, *self.parents.values()} - set(batch.names))
        if unknown:
            raise ValueError(f"parents must name agents out of {list(batch.names)}, got {unknown}")
        advantage = inherit_advantage(self.advantages(batch), self._parent_rows(batch))
        return torch.where(batch.trained, advantage, 0.0)

    def _parent_rows(self, batch: TurnBatch) -> Tensor:
        latest: dict[tuple[int, str], int] = {}
        rows = [-1] * len(batch)
        order = sorted(
            range(len(batch)),
            key=list(zip(batch.trajectory.tolist(), batch.index.tolist(), strict=True)).__getitem__,
        )
        trained = batch.trained.tolist()
        for row in order:
            name = batch.turns[row].agent
            trajectory = int(batch.trajectory[row])
            if name in self.parents:
                rows[row] = latest.get((trajectory, self.parents[name]), -1)
            if trained[row]:
                latest[trajectory, name] = row
        return torch.tensor(rows, dtype=torch.int64)


@dataclass(frozen=True)
class Standardized(Wrapper):
    """Advantages standardised over the tokens of each data source, so that no task family of a mixture drowns another (AgentRL).

    Groups in which the inner estimator found nothing to learn, all advantages being 0, stay at 0.

    Attributes:
        eps: Added to the standard deviation.

    References:
        Zhang et al., 2025 (AgentRL), arXiv:2510.04206.
    """

    eps: float = 1e-6

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float32 advantages."""
        advantage = self.advantages(batch)
        tokens = torch.tensor([len(turn.response_ids) for turn in batch.turns], dtype=torch.int64)
        compared = ("task",) if self.inner.scopes is None else self.inner.scopes.mean
        group = group_ids(batch.scope(compared))
        return standardize_per_task(
            advantage,
            batch.data_source,
            tokens=tokens,
            valid=batch.trained,
            signal=(segment_max(advantage.abs(), group) > 0)[group],
            eps=self.eps,
        )
