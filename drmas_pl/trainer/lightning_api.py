"""What Lightning's callbacks read on a Trainer, answered for a run of iterations.

A run is one epoch, an iteration is its batch and a step of its loggers. The groups' optimizer steps lie inside an iteration. Validation is
one batch, since its tasks are played together. Everything here is read-only but ``callback_metrics``, which callbacks add to.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import Strategy
from lightning.pytorch.accelerators import Accelerator, CPUAccelerator, CUDAAccelerator, MPSAccelerator
from lightning.pytorch.callbacks import Callback, EarlyStopping, ProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor, nn
from torch.optim import Optimizer

from drmas_pl.agent import Agent
from drmas_pl.data.module import TaskDataModule
from drmas_pl.rollout.collector import Collector
from drmas_pl.team import Team
from drmas_pl.trainer.run_directory import RunDirectory
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.state import FitContext, RunState
from drmas_pl.workers.protocols import PolicyWorkers, ValueWorkers

ACCELERATORS = {"cpu": CPUAccelerator, "cuda": CUDAAccelerator, "mps": MPSAccelerator}


def as_tensors(metrics: Mapping[str, float]) -> dict[str, Tensor]:
    """Return metrics as callbacks expect them.

    >>> as_tensors({"validation/success": 0.5})
    {'validation/success': tensor(0.5000)}
    """
    return {name: torch.tensor(float(value)) for name, value in metrics.items()}


class TeamModule(L.LightningModule):
    """All agents of a run as one module, handed to callbacks as ``pl_module``.

    Args:
        agents: Agents by name.
    """

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        super().__init__()
        self.agents = nn.ModuleDict(agents)


class TrainerProperties:
    """The words of Lightning's Trainer that callbacks use, and what the trainer works on.

    Attributes:
        callback_metrics: Newest value of every metric.
        context: What ``fit``, ``validate`` or ``test`` works on; None before the first of them.
        module: All agents as one module, as hooks are given it; without agents before that.
    """

    callbacks: list[Callback]
    loggers: list[Logger]
    fabric: Fabric
    folder: RunDirectory
    state: RunState
    evaluation: EvaluationSettings
    rollout: RolloutSettings
    module: TeamModule
    context: FitContext | None
    max_iterations: int
    seed: int
    hparams: Mapping[str, Any] | None
    callback_metrics: dict[str, Tensor]

    # the run is one epoch, in which nothing is accumulated
    current_epoch = 0
    max_epochs = 1
    min_epochs = None
    accumulate_grad_batches = 1
    check_val_every_n_epoch = None
    log_every_n_steps = 1
    # the first validation is a real one
    sanity_checking = False
    num_sanity_val_batches = 0
    enable_validation = True
    predicting = False

    @property
    def running(self) -> FitContext:
        """What ``fit``, ``validate`` or ``test`` works on.

        Raises:
            AttributeError: None of them was called yet.
        """
        if self.context is None:
            raise AttributeError(
                "the trainer has no team, groups and data yet; call fit, validate or test first"
            )
        return self.context

    @property
    def team(self) -> Team:
        """Prototype of the team."""
        return self.running.team

    @property
    def groups(self) -> PolicyWorkers:
        """Worker groups by name."""
        return self.running.groups

    @property
    def critics(self) -> ValueWorkers:
        """Critics by name."""
        return self.running.critics

    @property
    def data(self) -> TaskDataModule:
        """The tasks."""
        return self.running.data

    @property
    def collector(self) -> Collector:
        """What plays the team."""
        return self.running.collector

    @property
    def agents(self) -> dict[str, Agent]:
        """Agents by name, in the team's order."""
        return self.running.agents

    @property
    def iteration(self) -> int:
        """Completed iterations."""
        return self.state.iteration

    @property
    def global_step(self) -> int:
        """Completed iterations, the step of every record."""
        return self.state.iteration

    @property
    def max_steps(self) -> int:
        """Iterations of the whole run."""
        return self.max_iterations

    @property
    def num_training_batches(self) -> int:
        """Iterations of the whole run."""
        return self.max_iterations

    @property
    def num_val_batches(self) -> list[int]:
        """One: validation tasks are played together."""
        return [1]

    @property
    def num_test_batches(self) -> list[int]:
        """One: test tasks are played together."""
        return [1]

    @property
    def estimated_stepping_batches(self) -> int:
        """Iterations of the whole run."""
        return self.max_iterations

    @property
    def val_check_interval(self) -> int:
        """Iterations between validations."""
        return self.evaluation.every

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return self.loggers[0] if self.loggers else None

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """Newest value of every metric."""
        return self.callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """What a progress bar shows beside its count: reward and success of the newest iteration."""
        names = {"reward": "train/reward", "success": "train/success"}
        found = {short: self.callback_metrics.get(name) for short, name in names.items()}
        return {short: value.item() for short, value in found.items() if value is not None}

    @property
    def training(self) -> bool:
        """Whether an iteration is under way, or between two of them."""
        return self.state.stage == RunningStage.TRAINING

    @property
    def validating(self) -> bool:
        """Whether validation tasks are played."""
        return self.state.stage == RunningStage.VALIDATING

    @property
    def testing(self) -> bool:
        """Whether test tasks are played."""
        return self.state.stage == RunningStage.TESTING

    @property
    def evaluating(self) -> bool:
        """Whether validation or test tasks are played."""
        return self.validating or self.testing

    @property
    def strategy(self) -> Strategy:
        """Fabric's strategy."""
        return self.fabric.strategy

    @property
    def accelerator(self) -> Accelerator:
        """The trainer's accelerator, which knows statistics of its device."""
        kind: Any = ACCELERATORS[self.fabric.device.type]
        accelerator: Accelerator = kind()
        return accelerator

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the process that writes."""
        return self.fabric.is_global_zero

    @property
    def global_rank(self) -> int:
        """Rank of this process."""
        return self.fabric.global_rank

    @property
    def local_rank(self) -> int:
        """Rank of this process on its machine."""
        return self.fabric.local_rank

    @property
    def node_rank(self) -> int:
        """Rank of this machine."""
        return self.fabric.node_rank

    @property
    def world_size(self) -> int:
        """Processes of the trainer, without those of groups on a cluster."""
        return self.fabric.world_size

    @property
    def optimizers(self) -> list[Optimizer]:
        """Optimizers of the groups in this process, by name; groups on a cluster keep theirs there."""
        if self.context is None:
            return []
        found = [group.optimizer for _, group in sorted(self.context.groups.items())]
        return [optimizer for optimizer in found if optimizer is not None]

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """None: a group sets the learning rate of its optimizer before every step."""
        return []

    @property
    def default_root_dir(self) -> str:
        """The run folder."""
        return str(self.folder.path)

    @property
    def log_dir(self) -> str:
        """The run folder."""
        return str(self.folder.path)

    @property
    def lightning_module(self) -> TeamModule:
        """The agents as one module, as hooks are given it."""
        return self.module

    @property
    def model(self) -> TeamModule:
        """The agents as one module, as hooks are given it."""
        return self.module

    @property
    def datamodule(self) -> TaskDataModule:
        """The tasks."""
        return self.data

    @property
    def progress_bar_callback(self) -> ProgressBar | None:
        """The first of Lightning's progress bars."""
        return next((item for item in self.callbacks if isinstance(item, ProgressBar)), None)

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first callback of early stopping."""
        return next((item for item in self.callbacks if isinstance(item, EarlyStopping)), None)

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint that the run went on from."""
        path = None if self.context is None else self.context.checkpoint
        return None if path is None else str(path)

    @property
    def fit_loop(self) -> Any:
        """What callbacks read of the loop of a stock Trainer."""
        epoch_loop = SimpleNamespace(
            _batches_that_stepped=self.state.step, _should_check_val_epoch=lambda: True
        )
        return SimpleNamespace(epoch_loop=epoch_loop, max_epochs=self.max_epochs)

    @property
    def _logger_connector(self) -> Any:
        return SimpleNamespace(should_update_logs=True)
