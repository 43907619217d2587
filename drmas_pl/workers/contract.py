"""What the training loop asks of a worker group or a critic, wherever its weights are: in this process or on other ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.engines.base import Engine
from drmas_pl.models.value_head import ValueRow
from drmas_pl.types import Turn
from drmas_pl.workers.critic import CriticReport, ValueWorkerSettings
from drmas_pl.workers.group import PolicyWorkerSettings
from drmas_pl.workers.update import UpdateReport


class Group(Protocol):
    """A set of weights with optimizer and engine, and the agents that speak with it.

    Attributes:
        name: Keys its checkpoint folder and metrics.
        agents: Its agents by name.
        settings: How it learns.
        weights_version: Number of updates that its weights have seen.
        parameter_count: Number of parameters of the policy.
        engine: Generates with its weights; awake in :meth:`rollout` alone.
    """

    name: str
    agents: dict[str, Agent]
    settings: PolicyWorkerSettings
    weights_version: int
    parameter_count: int
    engine: Engine

    def rollout(self) -> AbstractContextManager[Engine]:
        """Wake the engine with the newest weights for the duration of the block."""
        ...

    def training(self) -> AbstractContextManager[Any]:
        """Hold the policy ready for updates for the duration of the block."""
        ...

    def update(self, rows: Mapping[str, Sequence[TrainingRow]], *, seed: int) -> UpdateReport:
        """Run the iteration's optimizer steps on the agents' rows."""
        ...

    def reward_penalties(self, agent: Agent, turns: Sequence[Turn]) -> list[float]:
        """Return what the KL penalty takes from each turn's score."""
        ...

    def save(self, folder: Path) -> None:
        """Write model, optimizer state and counters."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote."""
        ...

    def close(self) -> None:
        """Release everything for good."""
        ...


class Critic(Protocol):
    """A value model with optimizer.

    Attributes:
        name: Keys its checkpoint folder and metrics.
        agents: Names of the agents whose tokens it judges.
        settings: How it learns.
        parameter_count: Number of parameters of the model.
    """

    name: str
    agents: frozenset[str]
    settings: ValueWorkerSettings
    parameter_count: int

    def values(self, rows: Sequence[TrainingRow]) -> list[tuple[float, ...]]:
        """Return the value of each sampled token of ``rows``, in order."""
        ...

    def update(self, rows: Sequence[ValueRow], *, seed: int) -> CriticReport:
        """Run the iteration's optimizer steps."""
        ...

    def save(self, folder: Path) -> None:
        """Write model, optimizer state and counters."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote."""
        ...
