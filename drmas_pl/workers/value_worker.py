"""A critic and its optimizer: judges the tokens of its agents and learns from what they led to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.kernels.response_values import response_values
from drmas_pl.models.value_head import ValueModel, ValueRow
from drmas_pl.optim import OptimizerSettings
from drmas_pl.workers.learner import LearnerSettings
from drmas_pl.workers.losses import ValueLoss
from drmas_pl.workers.scoring import numbers_of_rows
from drmas_pl.workers.strategies import check_precision, reshard
from drmas_pl.workers.weights import Layout
from drmas_pl.workers.worker import Worker

# what the name of a critic begins with where worker groups have names too
CRITIC = "critic-"


@dataclass(frozen=True, slots=True)
class ValueWorkerSettings(LearnerSettings):
    """How a critic learns; see :class:`~drmas_pl.workers.learner.LearnerSettings` for what policies have as well.

    Attributes:
        optimizer: Optimizer and schedule.
        value_clip: How far a value may move from that before the update until its token's gradient is cut; None for no bound.
        warmup: First iterations in which critics learn and policies do not.
        total_steps: Planned optimizer steps of the whole run, for the schedule, whether or not all of them are made.
        checkpoint: How sharded weights and optimizer state are saved: put together, or every rank its ``shards``.

    Raises:
        ValueError: A number is out of range.
    """

    trainable: ClassVar[bool] = True
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    value_clip: float | None = 0.2
    warmup: int = 0
    total_steps: int = 1
    checkpoint: Layout = "whole"

    def __post_init__(self) -> None:
        LearnerSettings.__post_init__(self)
        if self.warmup < 0:
            raise ValueError(f"warmup must be at least 0, got {self.warmup}")
        if self.value_clip is not None and not self.value_clip > 0:
            raise ValueError(
                f"value_clip must be positive, got {self.value_clip}; use null to switch clipping off"
            )

    @property
    def learning(self) -> LearnerSettings:
        """Minibatches, micro-batches and guard rails."""
        return self


class ValueWorker(Worker[Sequence[ValueRow]]):
    """One value model with its optimizer, and the agents whose tokens it judges.

    Args:
        name: Name of the critic; keys its checkpoint folder and metrics.
        model: Judges tokens.
        agents: Names of its agents.
        pad_id: Padding id of their tokenizer.
        fabric: Places the model and scales gradients.
        settings: See :class:`ValueWorkerSettings`.

    Raises:
        ConfigError: The critic computes in a precision that cannot be trained with.
    """

    kind = "critic"
    label_prefix = CRITIC
    record_file = "critic.json"
    settings: ValueWorkerSettings

    def __init__(
        self,
        name: str,
        *,
        model: ValueModel,
        agents: Collection[str],
        pad_id: int,
        fabric: Fabric,
        settings: ValueWorkerSettings | None = None,
    ) -> None:
        check_precision(fabric.strategy.precision.precision)
        settings = settings or ValueWorkerSettings()
        super().__init__(name, model=model, fabric=fabric, settings=settings)
        self._agents = frozenset(agents)
        self.pad_id = pad_id
        if settings.activation_checkpointing:
            checkpoint_activations(model.backbone)
        self._train()
        self._own([model])

    @property
    def agents(self) -> frozenset[str]:
        """Names of its agents."""
        return self._agents

    def values(self, rows: Sequence[TrainingRow]) -> list[tuple[float, ...]]:
        """Return the value of each sampled token of ``rows``, in order."""
        with self.offload.present("weights"):
            values = numbers_of_rows(
                partial(response_values, self.module),
                rows,
                budget=self.settings.micro_batch_tokens,
                pad_id=self.pad_id,
                fabric=self.fabric,
                model=self.module,
            )
            reshard(self.model)
        return values

    def _loss(self) -> ValueLoss:
        budget = self.settings.micro_batch_tokens
        return ValueLoss(critic=self.module, clip=self.settings.value_clip, pad_id=self.pad_id, budget=budget)

    def _flatten(self, rows: Sequence[ValueRow]) -> Sequence[ValueRow]:
        return rows

    def _write_weights(self, folder: Path, weights: Mapping[str, Tensor] | None) -> None:
        from safetensors.torch import save_file

        found = self.model.state_dict() if weights is None else weights
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / "model.safetensors")

    def _check_record(self, record: Mapping[str, Any]) -> None:
        if record["agents"] != sorted(self.agents):
            raise ValueError(f"it judges {record['agents']}, this one {sorted(self.agents)}")
