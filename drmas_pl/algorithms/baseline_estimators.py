"""Estimators whose baseline is not the mean of the group: the others of the group, the batch, the best of k, a running mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from drmas_pl.algorithms.estimators import AdvantageEstimator, Unit, check_unit
from drmas_pl.algorithms.turn_batch import Scope, TurnBatch, check_scope
from drmas_pl.functional.advantages import SingletonRule
from drmas_pl.functional.baselines import leave_one_out, pass_at_k_advantage, reinforce_plus_plus
from drmas_pl.functional.checks import check_choice
from drmas_pl.functional.grouping import group_ids
from drmas_pl.functional.running import RunningBaseline
from drmas_pl.functional.segments import segment_count

Others = Literal["samples", "turns"]


@dataclass(frozen=True)
class LeaveOneOut(AdvantageEstimator):
    """Score minus the mean of the group's others (RLOO).

    Attributes:
        unit: Whether each ``turn`` or each ``trajectory`` is one entry.
        scope: Columns whose equal values form a group.
        baseline: What the others are: the other ``samples``, each with the mean of its turns in the group, or the other ``turns``, those of
            the same trajectory included, which makes the baseline depend on the turn it is subtracted from.
        singleton: Groups of one, see :func:`~drmas_pl.functional.baselines.leave_one_out`.

    Raises:
        ValueError: A setting is unknown.

    References:
        Ahmadian et al., 2024, arXiv:2402.14740.
    """

    unit: Unit = "turn"
    scope: tuple[Scope, ...] = ("task", "agent")
    baseline: Others = "samples"
    singleton: SingletonRule = "zero"

    def __post_init__(self) -> None:
        check_unit(self.unit)
        check_scope(self.scope)
        check_choice("baseline", self.baseline, get_args(Others))
        if self.unit == "trajectory" and self.baseline == "turns":
            raise ValueError("baseline='turns' compares turns, got unit='trajectory'; set unit='turn'")
        nobody = torch.zeros(0, dtype=torch.int64)
        leave_one_out(nobody.double(), nobody, agent=nobody, singleton=self.singleton)

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float32 advantages."""
        return leave_one_out(
            batch.score,
            batch.scope(self.scope),
            entry=batch.trajectory if self.unit == "trajectory" else None,
            sample=batch.trajectory if self.baseline == "samples" else None,
            agent=batch.agent,
            singleton=self.singleton,
        )


@dataclass(frozen=True)
class BatchWhitening(AdvantageEstimator):
    """Scores, or their excess over a group's mean, whitened over the batch (REINFORCE++).

    Attributes:
        baseline: Columns whose equal values share the mean that is subtracted first; None subtracts none.
        per_scope: Columns whose equal values are whitened together; ``[batch]`` whitens all rows, ``[agent]`` each agent's.

    Raises:
        ValueError: A column is unknown.

    References:
        Hu, 2025, arXiv:2501.03262.
    """

    baseline: tuple[Scope, ...] | None = None
    per_scope: tuple[Scope, ...] = ("batch",)

    def __post_init__(self) -> None:
        check_scope(self.per_scope)
        if self.baseline is not None:
            check_scope(self.baseline)

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float32 advantages."""
        group = None if self.baseline is None else batch.scope(self.baseline)
        return reinforce_plus_plus(batch.score, group, part=batch.scope(self.per_scope))


@dataclass(frozen=True)
class BestOfK(AdvantageEstimator):
    """Success of a trajectory valued by how it helps the best of k attempts at its task; penalties of turns play no part.

    Tasks with fewer than k finished trajectories give no signal, and hardly any give one where k is not below the number of samples.

    Attributes:
        k: Size of the subsets whose best counts, at least 1.

    Raises:
        ValueError: ``k`` is below 1.

    References:
        Chen et al., 2025, arXiv:2508.10751.
    """

    k: int = 4

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float32 advantages, equal for all trained turns of a trajectory."""
        trajectory = group_ids(batch.trajectory)
        count = int(trajectory.max()) + 1 if len(batch) else 0
        task = torch.zeros(count, dtype=torch.int64).scatter_(0, trajectory, batch.task)
        success = torch.zeros(count, dtype=torch.bool).scatter_(0, trajectory, batch.success)
        enough = (segment_count(task)[task] >= self.k).nonzero().squeeze(-1)
        value = torch.zeros(count, dtype=torch.float32)
        value[enough] = pass_at_k_advantage(success[enough].double(), group_ids(task[enough]), k=self.k)
        return torch.where(batch.trained, value[trajectory], 0.0)


class RoleBaseline(AdvantageEstimator):
    """Score minus a running mean per (data source, agent), read before the score moves it; works with one sample per task.

    The turns of an agent in one trajectory count as one entry, so that talkative agents do not move their baseline faster.

    Args:
        decay: d in ``b ← d·b + (1 − d)·s``, in [0, 1].

    Raises:
        ValueError: ``decay`` is out of range.

    References:
        Liu et al., 2025 (SPIRAL), arXiv:2506.24119.
    """

    def __init__(self, *, decay: float = 0.95) -> None:
        self._baseline = RunningBaseline(torch.zeros(0, dtype=torch.float64), decay)
        self._keys: dict[str, int] = {}

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float32 advantages and move the baselines."""
        labels = [
            f"{source}/{batch.names[agent]}"
            for source, agent in zip(batch.sources, batch.agent.tolist(), strict=True)
        ]
        key = torch.tensor(
            [self._keys.setdefault(label, len(self._keys)) for label in labels], dtype=torch.int64
        )
        advantage, self._baseline = self._baseline.advantage(batch.score, key, entry=batch.trajectory)
        return advantage

    def state_dict(self) -> dict[str, Any]:
        """Return the baselines by ``source/agent``."""
        return {
            label: float(self._baseline.mean[place])
            for label, place in self._keys.items()
            if place < self._baseline.mean.numel()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over baselines."""
        self._keys = {label: place for place, label in enumerate(state)}
        self._baseline = RunningBaseline(
            torch.tensor(list(state.values()), dtype=torch.float64), self._baseline.decay
        )
