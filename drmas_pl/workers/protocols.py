"""What the training loop may ask of a worker, whether its weights are in this process or on a cluster.

A *policy worker* owns one set of policy weights with optimizer, engine and agents; a *value worker* owns one critic. Concrete classes are
:class:`~drmas_pl.workers.policy_worker.PolicyWorker` and :class:`~drmas_pl.workers.value_worker.ValueWorker` in this process, and
``RemotePolicyWorker`` and ``RemoteValueWorker`` of :mod:`drmas_pl.cluster` elsewhere. These protocols are complete: outside ``workers``
and ``cluster`` nobody has to know which of the classes a worker is. What a question to a worker on a cluster would be without meaning has
an answer as well: it has no ``fabric`` and no ``optimizer`` here, and a worker in this process has no ``max_retries`` and no places to
describe.

Who learns together is decided by :func:`drmas_pl.trainer.iteration.update_workers`; which engines are awake by
:mod:`drmas_pl.workers.engine_phases`; bringing weights to engines in the background by
:class:`~drmas_pl.workers.background_weight_sync.BackgroundWeightSync`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from lightning.fabric import Fabric

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.engines.base import Engine
from drmas_pl.models.value_head import ValueRow
from drmas_pl.types import Turn
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.policy_worker import PolicyWorkerSettings
from drmas_pl.workers.value_worker import ValueWorkerSettings

Rows = TypeVar("Rows", contravariant=True)


class WorkerProtocol(Protocol[Rows]):
    """An owner of weights that learns, saves itself, and may be lost with the processes that it runs in.

    Attributes:
        name: Keys its checkpoint folder and metrics.
        parameter_count: Number of parameters of the model.
        max_retries: How often in a row a stage is repeated that lost the worker's processes; 0 in this process, which cannot be lost.
        changed: Whether the state differs from its last snapshot; maintained by whoever takes snapshots.
    """

    name: str
    parameter_count: int
    max_retries: int
    changed: bool

    @property
    def label(self) -> str:
        """Name that is unique among all policy and value workers of a run."""
        ...

    @property
    def agents(self) -> Collection[str]:
        """Names of the agents whose tokens it is trained on; a policy worker maps them to the agents."""
        ...

    @property
    def fabric(self) -> Fabric | None:
        """The Fabric that it was built on; None where that is in other processes."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """Its optimizer; None where nothing is trained, or in other processes."""
        ...

    @property
    def owns_devices(self) -> bool:
        """Whether no other worker uses its devices, so that it may learn while others do."""
        ...

    def describe(self) -> str:
        """Return where it runs, such as ``2 ranks, ddp, cuda on 10.0.0.1 GPU 0, 10.0.0.1 GPU 1``; empty in this process."""
        ...

    def training(self) -> AbstractContextManager[Any]:
        """Hold the weights ready for updates for the duration of the block."""
        ...

    def update(self, rows: Rows, *, seed: int) -> UpdateReport:
        """Run the iteration's optimizer steps.

        Raises:
            GroupLost: It runs on a cluster and lost a process.
            TrainingStopped: Too many minibatches in a row had to be skipped.
        """
        ...

    def begin_update(self, rows: Rows, *, seed: int) -> Callable[[], UpdateReport]:
        """Begin with the optimizer steps and return what waits for their end; in this process they are made at once."""
        ...

    def save(self, folder: Path) -> None:
        """Write model, optimizer state and counters."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote.

        Raises:
            CheckpointError: A file is missing or does not fit.
        """
        ...

    def snapshot(self, folder: Path) -> None:
        """Write the state from which a stage is repeated when the worker is lost; only for the same number of ranks."""
        ...

    def restore(self, folder: Path | None) -> None:
        """Go back to a snapshot, and start processes that are gone; None starts from the first weights."""
        ...

    def close(self) -> None:
        """Release everything for good."""
        ...


class PolicyWorkerProtocol(WorkerProtocol[Mapping[str, Sequence[TrainingRow]]], Protocol):
    """One set of policy weights with optimizer and engine, and the agents that speak with it. Updates take rows by agent name.

    Attributes:
        settings: How it learns.
        weights_version: Number of updates that its weights have seen.
        engine: Generates with its weights; awake in :meth:`rollout` and :meth:`ahead` alone.
        sync_seconds: Seconds spent so far on bringing new weights to the engine, as far as this process knows.
    """

    settings: PolicyWorkerSettings
    weights_version: int
    engine: Engine
    sync_seconds: float

    @property
    def agents(self) -> dict[str, Agent]:
        """Its agents by name."""
        ...

    @property
    def generates_while_training(self) -> bool:
        """Whether the engine can generate while this or another worker trains."""
        ...

    @property
    def syncs_in_background(self) -> bool:
        """Whether the engine can take over new weights while another worker trains."""
        ...

    def rollout(self) -> AbstractContextManager[Engine]:
        """Wake the engine with the newest weights for the duration of the block."""
        ...

    def ahead(self) -> AbstractContextManager[Engine]:
        """Wake the engine with the newest weights, which it keeps for the duration of the block while the worker may learn.

        Raises:
            LifecycleError: The engine cannot generate while the worker learns.
        """
        ...

    def reward_penalties(self, agent: Agent, turns: Sequence[Turn]) -> list[float]:
        """Return what the KL penalty takes from each turn's score."""
        ...


class ValueWorkerProtocol(WorkerProtocol[Sequence[ValueRow]], Protocol):
    """A critic: value model and optimizer. Updates take rows with the values before the update and the returns.

    Attributes:
        settings: How it learns.
    """

    settings: ValueWorkerSettings

    def values(self, rows: Sequence[TrainingRow]) -> list[tuple[float, ...]]:
        """Return the value of each sampled token of ``rows``, in order."""
        ...


PolicyWorkers = Mapping[str, PolicyWorkerProtocol]
ValueWorkers = Mapping[str, ValueWorkerProtocol]
