"""What owners of a policy and of a critic have in common: weights, optimizer, lifecycle, and state on disk."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from drmas_pl.errors import CheckpointError
from drmas_pl.optim import LearningRate, OptimizerSettings, build_optimizer
from drmas_pl.workers.learner import Learner, LearnerCounters, LearnerSettings, UpdateLoss, UpdateReport
from drmas_pl.workers.lifecycle import Lifecycle, State, TransitionHook
from drmas_pl.workers.offload import WorkerOffload, device_meter
from drmas_pl.workers.randomness import ready_to_learn
from drmas_pl.workers.snapshot import read_snapshot, write_snapshot
from drmas_pl.workers.strategies import check_precision
from drmas_pl.workers.weights import Layout, load_state, save_state

Rows = TypeVar("Rows")
# what a damaged or foreign checkpoint raises, beside SafetensorError
_UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, EOFError, UnpicklingError)


class WorkerSettings(Protocol):
    """What a worker reads of its settings: see those of policies and critics."""

    @property
    def optimizer(self) -> OptimizerSettings: ...

    @property
    def learning(self) -> LearnerSettings: ...

    @property
    def total_steps(self) -> int: ...

    @property
    def checkpoint(self) -> Layout: ...


class Worker(ABC, Generic[Rows]):
    """Owner of one set of weights in this process, which learns from ``Rows``.

    A subclass calls :meth:`_train` or places weights that are never trained, and then :meth:`_own`.

    Attributes:
        kind: What it is called in messages.
        label: Its name, unique among all workers of a run.
        parameter_count: Number of parameters of the model.
        counters: Version of the weights, and optimizer steps.
        optimizer: Its optimizer; None where nothing is trained.
        learner: Makes the optimizer steps; None where nothing is trained.
        module: The model as Fabric has wrapped it.
        changed: Whether the state differs from its last snapshot; maintained by whoever takes snapshots.

    Args:
        name: Name of the worker; keys its checkpoint folder and metrics.
        model: Its weights.
        fabric: Places the model and scales gradients.
        settings: How it learns and is saved.
        hooks: Called on lifecycle transitions.
    """

    kind: ClassVar[str]
    label_prefix: ClassVar[str] = ""
    record_file: ClassVar[str]
    settings: WorkerSettings
    max_retries = 0
    owns_devices = False

    def __init__(
        self,
        name: str,
        *,
        model: nn.Module,
        fabric: Fabric,
        settings: WorkerSettings,
        hooks: Sequence[TransitionHook] = (),
    ) -> None:
        self.name = name
        self.label = f"{self.label_prefix}{name}"
        self.owner = f"{self.kind} {name!r}"
        self.changed = True
        self.model: Any = model
        self.module = model
        self.fabric = fabric
        self.counters = LearnerCounters()
        self.lifecycle = Lifecycle(self.owner, hooks=hooks)
        self.parameter_count = sum(parameter.numel() for parameter in model.parameters())
        self.optimizer: torch.optim.Optimizer | None = None
        self.learner: Learner[Any, Any] | None = None
        self.offload: WorkerOffload
        self.settings = settings

    @property
    @abstractmethod
    def agents(self) -> Collection[str]:
        """Names of the agents whose tokens it is trained on."""

    @property
    def state(self) -> State:
        """Current lifecycle state."""
        return self.lifecycle.state

    @property
    def weights_version(self) -> int:
        """Number of updates that the weights have seen."""
        return self.counters.weights_version

    @weights_version.setter
    def weights_version(self, version: int) -> None:
        self.counters.weights_version = version

    @contextmanager
    def training(self) -> Iterator[nn.Module]:
        """Hold weights and optimizer state ready for updates for the duration of the block.

        Raises:
            ConfigError: It computes in a precision that cannot be trained with.
        """
        check_precision(self.fabric.strategy.precision.precision)
        dropout = getattr(self.settings.learning, "dropout", False)
        with self.lifecycle.phase(State.TRAINING), ready_to_learn(self.module, dropout=dropout):
            yield self.module

    def update(self, rows: Rows, *, seed: int) -> UpdateReport:
        """Run the iteration's optimizer steps.

        Args:
            rows: All rows of the iteration.
            seed: Seed of the shuffle into minibatches.

        Raises:
            LifecycleError: The worker is not in its training phase.
            TrainingStopped: Too many minibatches in a row had to be skipped.
        """
        self.lifecycle.require(State.TRAINING)
        assert self.learner is not None, "frozen weights learn nothing"
        return self.learner.update(self._flatten(rows), seed=seed)

    def begin_update(self, rows: Rows, *, seed: int) -> Callable[[], UpdateReport]:
        """Run :meth:`update` and return what gives its report."""
        report = self.update(rows, seed=seed)
        return lambda: report

    def save(self, folder: Path) -> None:
        """Write weights, whole or in shares as the settings say, and optimizer state and counters beside them.

        Every rank of the worker has to call it; of what is not in shares the first one writes everything.
        """
        with self.offload.present("weights", "optimizer"):
            shards = save_state(
                self.model,
                self.optimizer,
                folder,
                layout=self.settings.checkpoint,
                fabric=self.fabric,
                write_whole=lambda weights: self._write_weights(folder, weights),
            )
        if self.fabric.is_global_zero:
            self._write_others(folder, shards=shards)
            record = {"agents": sorted(self.agents), **asdict(self.counters)}
            (folder / self.record_file).write_text(json.dumps(record, indent=1))
        self.fabric.barrier()

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote.

        Raises:
            CheckpointError: A file is missing or does not fit this worker.
        """
        from safetensors import SafetensorError

        try:
            record = json.loads((folder / self.record_file).read_text())
            self._check_record(record)
            # files of earlier versions do not know all of them
            known = {"weights_version": 0, "planned_steps": record["steps"], **record}
            with self.offload.present("weights", "optimizer"):
                load_state(self.model, self.optimizer, folder)
            self._count_from(known)
        except (*_UNREADABLE, SafetensorError) as error:
            raise CheckpointError(f"checkpoint {folder} does not fit {self.owner}: {error}") from error
        with self.offload.present("weights"):
            self.take_over()

    def take_over(self) -> None:
        """Have what generates take over the weights, which must be on their device; nothing does unless a subclass says so."""

    def snapshot(self, folder: Path) -> None:
        """Write this rank's part of the state from which a stage is repeated; see :mod:`drmas_pl.workers.snapshot`."""
        with self.offload.present("weights", "optimizer"):
            write_snapshot(folder, self.model, self.optimizer, asdict(self.counters), fabric=self.fabric)

    def restore(self, folder: Path | None) -> None:
        """Take over what :meth:`snapshot` wrote; every rank has to call it."""
        if folder is None:
            return
        with self.offload.present("weights", "optimizer"):
            self._count_from(read_snapshot(folder, self.model, self.optimizer, fabric=self.fabric))
            self.take_over()

    def describe(self) -> str:
        """Return nothing: the worker is in this process."""
        return ""

    def close(self) -> None:
        """Release everything for good."""
        self.lifecycle.move(State.CLOSED)

    def _count_from(self, found: Mapping[str, Any]) -> None:
        for name in asdict(self.counters):
            setattr(self.counters, name, found[name])

    def _train(self) -> None:
        """Set up the model and its optimizer for updates."""
        # FSDP2 replaces the parameters, so that the optimizer comes after the module
        self.module = self.fabric.setup_module(self.model)
        plain = build_optimizer(self.model.parameters(), self.settings.optimizer)
        rate = LearningRate(plain, self.settings.optimizer, self.settings.total_steps)
        optimizer: Any = self.fabric.setup_optimizers(plain)
        self.optimizer = optimizer
        self.learner = Learner(
            owner=self.owner,
            label=self.label,
            model=self.model,
            module=self.module,
            optimizer=optimizer,
            rate=rate,
            loss=self._loss(),
            fabric=self.fabric,
            settings=self.settings.learning,
            counters=self.counters,
        )

    def _own(self, models: Iterable[nn.Module]) -> None:
        """Leave the device to others until it is this worker's turn.

        Args:
            models: Modules whose weights belong to it.
        """
        self.module.eval()
        self.offload = WorkerOffload(
            self.owner,
            what=self.settings.learning.offload,
            models=models,
            optimizer=self.optimizer,
            device=self.fabric.device,
            meter=device_meter(self.fabric.device),
        )
        self.lifecycle.hooks.append(self.offload)
        self.offload.hold(set())

    @abstractmethod
    def _loss(self) -> UpdateLoss[Any, Any]:
        """Return what is learnt."""

    @abstractmethod
    def _flatten(self, rows: Rows) -> Sequence[Any]:
        """Return the rows one after the other."""

    @abstractmethod
    def _write_weights(self, folder: Path, weights: Mapping[str, Tensor] | None) -> None:
        """Write whole weights: gathered ones, or None where the model has them."""

    def _write_others(self, folder: Path, *, shards: bool) -> None:
        """Write what belongs to the weights, on the first rank."""

    def _check_record(self, record: Mapping[str, Any]) -> None:
        """Raise ValueError where the weights are for somebody else."""
