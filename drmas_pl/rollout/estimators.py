"""Advantage estimators: from a table of turns to one advantage per turn.

They choose columns and call :mod:`drmas_pl.functional.advantages`. Dr. MAS is a choice of scope: mean and standard deviation
over (task, agent) instead of over the task alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from drmas_pl.functional.advantages import SingletonRule, group_normalize
from drmas_pl.rollout.table import Scope, TurnTable, check_scope

Unit = Literal["turn", "trajectory"]


class AdvantageEstimator(Protocol):
    """Anything that gives each turn of a table one advantage."""

    @property
    def unit(self) -> Unit:
        """What counts as one entry of the statistics."""
        ...

    @property
    def mean_scope(self) -> tuple[Scope, ...]:
        """Columns whose equal values share a mean."""
        ...

    @property
    def std_scope(self) -> tuple[Scope, ...] | None:
        """Columns whose equal values share a standard deviation."""
        ...

    def __call__(self, table: TurnTable) -> Tensor:
        """Return (N,) float32 advantages; 0 for rows without signal."""
        ...


@dataclass(frozen=True)
class GroupNormalizer:
    """Group-normalised advantages: GRPO, Dr. MAS and everything between.

    Attributes:
        unit: Whether each ``turn`` or each ``trajectory`` (its turns within the group averaged) is one entry of the statistics.
        mean_scope: Columns whose equal values share a mean.
        std_scope: Columns whose equal values share a standard deviation; None divides by nothing.
        ddof: 1 for the sample standard deviation, 0 for the population's.
        eps: Added to the standard deviation.
        min_std: Floor of the standard deviation.
        clip: Bound on the absolute advantage, or None.
        singleton: Treatment of groups of one entry, see :func:`~drmas_pl.functional.advantages.group_normalize`.

    Raises:
        ValueError: A setting is unknown or out of range.

    References:
        Dr. MAS, 2026, arXiv:2602.08847; Shao et al., 2024, arXiv:2402.03300.
    """

    unit: Unit = "turn"
    mean_scope: tuple[Scope, ...] = ("task", "agent")
    std_scope: tuple[Scope, ...] | None = ("task", "agent")
    ddof: int = 1
    eps: float = 1e-6
    min_std: float = 0.0
    clip: float | None = None
    singleton: SingletonRule = "zero"

    def __post_init__(self) -> None:
        if self.unit not in ("turn", "trajectory"):
            raise ValueError(f"unit must be turn or trajectory, got {self.unit!r}")
        check_scope(self.mean_scope)
        object.__setattr__(self, "mean_scope", tuple(self.mean_scope))
        if self.std_scope is not None:
            check_scope(self.std_scope)
            object.__setattr__(self, "std_scope", tuple(self.std_scope))
        nobody = torch.zeros(0, dtype=torch.int64)
        # so that a wrong number is reported now and not after the first rollout
        self._normalize(nobody.double(), nobody, None, agent=nobody, entry=None)

    def __call__(self, table: TurnTable) -> Tensor:
        """Return (N,) float32 advantages."""
        mean_group = table.scope(self.mean_scope)
        std_group = None if self.std_scope is None else (mean_group if self.std_scope == self.mean_scope else table.scope(self.std_scope))
        entry = table.trajectory if self.unit == "trajectory" else None
        return self._normalize(table.score, mean_group, std_group, agent=table.agent, entry=entry)

    def _normalize(self, score: Tensor, mean_group: Tensor, std_group: Tensor | None, *, agent: Tensor, entry: Tensor | None) -> Tensor:
        return group_normalize(
            score,
            mean_group,
            std_group,
            entry=entry,
            agent=agent,
            ddof=self.ddof,
            eps=self.eps,
            min_std=self.min_std,
            clip=self.clip,
            singleton=self.singleton,
        )
