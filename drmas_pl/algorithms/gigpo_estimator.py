"""GiGPO on a batch of turns: whole episodes compared within a task, single steps within a state that came up more than once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from drmas_pl.algorithms.estimators import AdvantageEstimator
from drmas_pl.algorithms.turn_batch import Scope, TurnBatch, check_scope
from drmas_pl.functional.advantages import group_normalize
from drmas_pl.functional.checks import check_choice, check_range
from drmas_pl.functional.gigpo import GigpoMode, anchor_ids, gigpo_step
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.returns import return_to_go

Anchor = Literal["observation", "prompt"]


@dataclass(frozen=True)
class Gigpo(AdvantageEstimator):
    """Episode advantage plus ``weight`` times the advantage of the step within its anchor state.

    A step is compared by what the credit rule makes of the discounted returns of team and agent from it on, an episode by what the rule
    makes of the whole reward. Rules that follow the rewards of single turns, such as return-to-go, keep their own discount.

    Attributes:
        weight: w, at least 0.
        gamma: Discount per environment step of the return that a step is compared by, in [0, 1].
        mode: ``mean_norm`` centres both parts, ``mean_std_norm`` divides by the standard deviation as well.
        scope: Columns within which rows are compared; ``[task, agent]`` never compares two roles.
        anchor: What makes two states equal: what the environment said last, or the whole prompt.
        similarity: Share of matching text in (0, 1] from which two observations count as one state; below 1 it costs time
            quadratic in the observations of a task.
        eps: Added to standard deviations.

    Raises:
        ValueError: A setting is unknown or out of range.

    References:
        Feng et al., 2025, arXiv:2505.10978.
    """

    weight: float = 1.0
    gamma: float = 0.95
    mode: GigpoMode = "mean_std_norm"
    scope: tuple[Scope, ...] = ("task",)
    anchor: Anchor = "observation"
    similarity: float = 1.0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_range("weight", self.weight, low=0.0)
        check_range("gamma", self.gamma, low=0.0, high=1.0)
        check_choice("mode", self.mode, ("mean_norm", "mean_std_norm"))
        check_choice("anchor", self.anchor, ("observation", "prompt"))
        check_scope(self.scope)
        if not 0 < self.similarity <= 1 or (self.anchor == "prompt" and self.similarity < 1):
            raise ValueError(f"similarity must be in (0, 1], and 1 for anchor=prompt, got {self.similarity}")

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float32 advantages."""
        group = batch.scope(self.scope)
        scaled = group if self.mode == "mean_std_norm" else None
        episode = group_normalize(batch.score, group, scaled, entry=batch.trajectory, eps=self.eps)
        return episode + self.weight * gigpo_step(
            self._returns(batch), group, self._states(batch), mode=self.mode, eps=self.eps
        )

    def _returns(self, batch: TurnBatch) -> Tensor:
        """Credit for the returns of team and agent from the row's environment step on, less its penalty; NaN where not trained."""
        team = return_to_go(batch.reward, batch.trajectory, batch.step, gamma=self.gamma)
        speaker = group_ids(batch.trajectory, batch.agent)
        own = return_to_go(batch.own_reward, speaker, batch.step, gamma=self.gamma)
        return batch.credited(team, own) - batch.penalty

    def _states(self, batch: TurnBatch) -> Tensor:
        if self.anchor == "prompt":
            return group_ids(batch.task, batch.state)
        return anchor_ids([turn.observation for turn in batch.turns], batch.task, threshold=self.similarity)
