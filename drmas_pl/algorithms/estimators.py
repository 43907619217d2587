"""Advantage estimators: from a batch of turns to one advantage per turn, or per token where a critic values tokens.

They choose columns and call :mod:`drmas_pl.functional`. Dr. MAS is a choice of scope: mean and standard deviation over (task, agent)
instead of over the task alone. Estimators with other baselines are in the sibling modules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from drmas_pl.algorithms.turn_batch import Scope, TurnBatch, check_scope
from drmas_pl.errors import ContractError
from drmas_pl.functional.advantages import SingletonRule, group_normalize
from drmas_pl.utils.validation import shown

Unit = Literal["turn", "trajectory"]


@dataclass(frozen=True, slots=True)
class Scopes:
    """Which rows an estimator compares; diagnostics explain advantages by it.

    Attributes:
        unit: What counts as one entry of the statistics.
        mean: Columns whose equal values share a mean.
        std: Columns whose equal values share a standard deviation; None where nothing is divided by one.
        min_std: Floor of the standard deviation.
        clip: Bound on the absolute advantage, or None.
        singleton: Treatment of groups of one entry.
    """

    unit: Unit
    mean: tuple[Scope, ...]
    std: tuple[Scope, ...] | None
    min_std: float = 0.0
    clip: float | None = None
    singleton: SingletonRule = "zero"


@dataclass(frozen=True, slots=True)
class TokenAdvantages:
    """Advantages of single tokens; N rows, T the longest response.

    Attributes:
        advantage: (N, T) float32, 0 where masked.
        returns: (N, T) float32, what the critic regresses on.
        mask: (N, T) bool, True on sampled tokens of trained rows.
    """

    advantage: Tensor
    returns: Tensor
    mask: Tensor

    @property
    def row(self) -> Tensor:
        """(N,) mean advantage of each row's tokens; 0 for rows without any."""
        return self.advantage.sum(dim=-1) / self.mask.sum(dim=-1).clamp_min(1)

    def __getitem__(self, rows: Tensor) -> TokenAdvantages:
        return TokenAdvantages(self.advantage[rows], self.returns[rows], self.mask[rows])


class AdvantageEstimator(ABC):
    """Gives each turn of a batch one advantage."""

    needs_values: bool = False
    """Whether ``batch.values`` must hold a critic's values."""

    @property
    def named_agents(self) -> Sequence[str]:
        """Return the agents that settings name; the team must have them."""
        return ()

    @abstractmethod
    def __call__(self, batch: TurnBatch) -> Tensor | TokenAdvantages:
        """Return (N,) float32 advantages, 0 for rows without signal or with a score that is not finite; or those of tokens."""

    @property
    def scopes(self) -> Scopes | None:
        """Return which rows are compared; None where that is no group normalisation."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return, as JSON-like data, what the estimator remembers from iteration to iteration."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""


@dataclass(frozen=True)
class FunctionEstimator(AdvantageEstimator):
    """Advantages that a plain function of the batch returns.

    Attributes:
        function: Returns (N,) advantages; what it gives for rows that are not trained is replaced by 0.
    """

    function: Callable[[TurnBatch], Tensor]

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float32 advantages.

        Raises:
            ContractError: The function returned something else.
        """
        found = self.function(batch)
        if not isinstance(found, Tensor) or found.shape != (len(batch),):
            raise ContractError(
                f"an estimator must return one advantage per turn, a tensor of shape ({len(batch)},), got {shown(found)}"
            )
        return torch.where(batch.trained, found, 0.0).to(torch.float32)


def as_estimator(estimator: AdvantageEstimator | Callable[[TurnBatch], Tensor] | None) -> AdvantageEstimator:
    """Return an estimator as it is, a function of the batch as one, and Dr. MAS for None.

    Raises:
        TypeError: It is neither.
    """
    if estimator is None:
        return GroupNormalizer()
    if isinstance(estimator, AdvantageEstimator):
        return estimator
    if isinstance(estimator, type) or not callable(estimator):
        raise TypeError(
            f"estimator must be an AdvantageEstimator or a function from a TurnBatch to advantages, got {shown(estimator)}"
        )
    return FunctionEstimator(estimator)


@dataclass(frozen=True)
class GroupNormalizer(AdvantageEstimator):
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
        check_unit(self.unit)
        check_scope(self.mean_scope)
        object.__setattr__(self, "mean_scope", tuple(self.mean_scope))
        if self.std_scope is not None:
            check_scope(self.std_scope)
            object.__setattr__(self, "std_scope", tuple(self.std_scope))
        nobody = torch.zeros(0, dtype=torch.int64)
        # so that a wrong number is reported now and not after the first rollout
        self._normalize(nobody.double(), nobody, None, agent=nobody, entry=None)

    @property
    def scopes(self) -> Scopes:
        """Return which rows are compared."""
        return Scopes(self.unit, self.mean_scope, self.std_scope, self.min_std, self.clip, self.singleton)

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float32 advantages."""
        mean_group = batch.scope(self.mean_scope)
        std_group = (
            None
            if self.std_scope is None
            else (mean_group if self.std_scope == self.mean_scope else batch.scope(self.std_scope))
        )
        entry = batch.trajectory if self.unit == "trajectory" else None
        return self._normalize(batch.score, mean_group, std_group, agent=batch.agent, entry=entry)

    def _normalize(
        self,
        score: Tensor,
        mean_group: Tensor,
        std_group: Tensor | None,
        *,
        agent: Tensor,
        entry: Tensor | None,
    ) -> Tensor:
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


def check_unit(unit: str) -> None:
    """Raise ValueError unless ``unit`` is known."""
    if unit not in ("turn", "trajectory"):
        raise ValueError(f"unit must be turn or trajectory, got {unit!r}")
