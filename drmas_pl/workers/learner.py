"""The optimizer steps of one worker in one iteration, whether it owns a policy or a critic.

Rows are shuffled into minibatches; a minibatch is one optimizer step. Each is computed in micro-batches of similar length under a token
budget. Denominators are those of the whole minibatch, so neither the budget nor the order changes the gradient. A minibatch with a
non-finite loss or gradient norm is not applied but dumped and counted. What is learnt from the rows is the business of an
:class:`UpdateLoss`; those of policies and critics are in :mod:`drmas_pl.workers.losses`.

On several ranks every rank is given all rows and computes its share of each minibatch's micro-batches. Losses and metrics are summed
over ranks before anything is decided, so all of them step, skip and stop together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, get_args

import torch
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drmas_pl.errors import TrainingStopped
from drmas_pl.functional.metrics import merge_metrics
from drmas_pl.optim import LearningRate
from drmas_pl.utils.storage import writing
from drmas_pl.utils.validation import check_fields
from drmas_pl.workers.minibatches import AgentWeight, split_rows
from drmas_pl.workers.offload import Offload
from drmas_pl.workers.ranks import deal_batches, merge_over_ranks
from drmas_pl.workers.totals import Means, PartStep


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """How an iteration's rows become optimizer steps.

    Attributes:
        updates_per_iteration: Minibatches per pass over the rows; 1 is strictly on-policy.
        epochs: Passes over the rows.
        max_grad_norm: Clip of the gradient norm of all weights.
        micro_batch_tokens: Largest number of tokens computed at once, with padding where there is any; memory grows with it, results
            do not change.
        activation_checkpointing: Keep the inputs of layers alone and compute the rest again in backward: less memory, more time.
        max_skips: Number of skipped minibatches in a row after which the run stops.
        dump_folder: Where skipped minibatches are written; None writes nothing.
        offload: What leaves the accelerator while others work: ``none``, the ``optimizer`` state, or ``all``.

    Raises:
        ValueError: A number is out of range.
    """

    updates_per_iteration: int = 1
    epochs: int = 1
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 16384
    activation_checkpointing: bool = False
    max_skips: int = 3
    dump_folder: str | None = None
    offload: Offload = "none"

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("updates_per_iteration", "epochs", "micro_batch_tokens", "max_skips"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.max_grad_norm > 0:
            raise ValueError(
                f"max_grad_norm must be positive, got {self.max_grad_norm}; use a large number to switch clipping off"
            )
        if self.offload not in get_args(Offload):
            raise ValueError(f"offload must be none, optimizer or all, got {self.offload!r}")


@dataclass(frozen=True, slots=True)
class UpdateSettings(LearnerSettings):
    """How an iteration's rows become optimizer steps of a policy; see :class:`LearnerSettings` for what critics have as well.

    Attributes:
        compile: Compile norms and feed-forward blocks for training, which pays on accelerators; results change by rounding.
        dropout: Let dropout and router noise of the model act in updates; engines sample without them, so ratios then start away from 1.
        old_logp: Take the ratio against the ``engine``'s log-probs, or ``recompute`` them: before the first step they are those of the
            policy in the same forward pass, so that every ratio is exactly 1, and later those of a forward pass before it.
        agent_weight: How much an agent counts that shares weights with others: in proportion to its ``token``s or ``turn``s in the
            minibatch, or each ``agent`` alike; None lets the objective's aggregation decide, see :func:`.minibatches.loss_divisors`.
        mismatch_alarm: Mean absolute difference of engine and trainer log-probs above which a warning is logged.
    """

    compile: bool = False
    dropout: bool = False
    old_logp: Literal["engine", "recompute"] = "engine"
    agent_weight: AgentWeight | None = None
    mismatch_alarm: float = 0.02

    def __post_init__(self) -> None:
        LearnerSettings.__post_init__(self)
        if self.old_logp not in ("engine", "recompute"):
            raise ValueError(f"old_logp must be engine or recompute, got {self.old_logp!r}")
        if self.agent_weight is not None and self.agent_weight not in get_args(AgentWeight):
            raise ValueError(f"agent_weight must be token, turn, agent or null, got {self.agent_weight!r}")


@dataclass(slots=True)
class LearnerCounters:
    """How far a worker has come.

    Attributes:
        weights_version: Updates that the weights have seen.
        steps: Optimizer steps made so far.
        planned_steps: Optimizer steps that were planned so far, those without signal or with a skipped minibatch included.
        skipped_in_a_row: Minibatches skipped since the last step.
    """

    weights_version: int = 0
    steps: int = 0
    planned_steps: int = 0
    skipped_in_a_row: int = 0


@dataclass(slots=True)
class UpdateReport:
    """What the optimizer steps did: counts, metrics of the worker, and each agent's metrics over all of its tokens.

    Attributes:
        steps: Optimizer steps.
        skipped: Minibatches that were skipped.
        rows: Rows that were computed.
        metrics: Means over steps or tokens by metric.
        agents: Metrics by agent, of policies.
    """

    steps: int = 0
    skipped: int = 0
    rows: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    agents: dict[str, dict[str, float]] = field(default_factory=dict)


_Self = TypeVar("_Self")


class DeviceBatch(Protocol):
    """What a learner asks of a micro-batch."""

    def __len__(self) -> int: ...

    def to(self: _Self, device: torch.device) -> _Self:
        """Move every tensor to ``device``."""
        ...


Row = TypeVar("Row")
Batch = TypeVar("Batch", bound=DeviceBatch)


class UpdateTotals(Protocol):
    """What an iteration's minibatches add up to; lives as long as one update."""

    def add(self, steps: Mapping[str, PartStep], *, stepped: bool) -> None:
        """Count in the parts of a minibatch; ``stepped`` tells whether the optimizer has made a step in this iteration before."""
        ...

    def write(self, report: UpdateReport, means: Mapping[str, float]) -> None:
        """Write the report's metrics; ``means`` are those over steps of ``loss``, ``grad_norm``, ``lr`` and gradients ``clipped``."""
        ...


class UpdateLoss(ABC, Generic[Row, Batch]):
    """What a worker learns from its rows: how they become micro-batches, and what is computed from those.

    A minibatch has one or more *parts*, such as the rows of one agent. Their gradients are added; each has a norm of its own.
    """

    def prepare(self, rows: Sequence[Row], *, later: Collection[int]) -> list[Row]:
        """Complete the rows before the first optimizer step.

        Args:
            rows: All rows of the iteration.
            later: Places of the rows that are learnt from after the first step.
        """
        return list(rows)

    @abstractmethod
    def start_totals(self, rows: Sequence[Row]) -> UpdateTotals:
        """Return what counts the minibatches of an iteration with these rows."""

    @abstractmethod
    def micro_batches(self, minibatch: Sequence[Row], *, stepped: bool) -> Mapping[str, Sequence[Batch]]:
        """Cut a minibatch into micro-batches, whose losses add up to its loss.

        Args:
            minibatch: Its rows.
            stepped: Whether the optimizer has made a step in this iteration before.

        Returns:
            Micro-batches by part; of parts that have any.
        """

    @abstractmethod
    def compute(self, part: str, batch: Batch) -> dict[str, Tensor]:
        """Return the scalar ``loss`` of a micro-batch, with gradient, and sums for the metrics, all of equal names on all ranks."""

    @abstractmethod
    def masked(self, batch: Batch) -> Batch:
        """Return a small batch that changes nothing, for a rank that has fewer than another one."""

    def inspect(self, minibatch: Sequence[Row], steps: Mapping[str, PartStep]) -> None:
        """Look at a minibatch of the first optimizer step, for what its user should be told."""


@dataclass(slots=True, kw_only=True)
class Learner(Generic[Row, Batch]):
    """Learns from rows with one optimizer.

    Attributes:
        owner: Who learns, for errors.
        label: Begins the names of dumped minibatches.
        model: Its weights.
        module: The model as Fabric has wrapped it.
        optimizer: Optimizer of the weights that require gradients.
        rate: Sets its learning rate.
        loss: What is learnt.
        fabric: Scales gradients and knows the ranks.
        settings: Minibatches, micro-batches and guard rails.
        counters: Counts for its owner.
    """

    owner: str
    label: str
    model: nn.Module
    module: nn.Module
    optimizer: torch.optim.Optimizer
    rate: LearningRate
    loss: UpdateLoss[Row, Batch]
    fabric: Fabric
    settings: LearnerSettings
    counters: LearnerCounters

    def update(self, rows: Sequence[Row], *, seed: int) -> UpdateReport:
        """Run every optimizer step of an iteration.

        Args:
            rows: All rows of it.
            seed: Seed of the shuffle into minibatches.

        Raises:
            TrainingStopped: Too many minibatches in a row had to be skipped.
        """
        settings = self.settings
        report = UpdateReport()
        planned = self.counters.planned_steps
        # a schedule that counted only the steps that are made would not be at its end when the run is
        self.counters.planned_steps += settings.updates_per_iteration * settings.epochs
        if not rows:
            return report
        parts = split_rows(
            len(rows),
            updates=settings.updates_per_iteration,
            epochs=settings.epochs,
            generator=torch.Generator().manual_seed(seed % (1 << 63)),
        )
        totals = self.loss.start_totals(rows)
        means = Means()
        rows = self.loss.prepare(rows, later={place for part in parts[1:] for place in part})
        for place, part in enumerate(parts):
            self._step([rows[index] for index in part], planned + place, report, totals, means)
        totals.write(report, means.result())
        if report.steps:
            self.counters.weights_version += 1
        return report

    def _step(
        self,
        minibatch: Sequence[Row],
        planned: int,
        report: UpdateReport,
        totals: UpdateTotals,
        means: Means,
    ) -> None:
        """Accumulate the gradient of a minibatch part by part, check it, clip it and step."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer.zero_grad(set_to_none=True)
        steps: dict[str, PartStep] = {}
        for name, batches in self.loss.micro_batches(minibatch, stepped=report.steps > 0).items():
            steps[name] = self._accumulate(name, batches, parameters)
            report.rows += sum(map(len, batches))
        if not steps:
            return
        if not report.steps:
            self.loss.inspect(minibatch, steps)
        loss = sum(step.loss for step in steps.values())
        norm = next(iter(steps.values())).grad_norm if len(steps) == 1 else _norm(parameters)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._skip(minibatch, report)
            return
        totals.add(steps, stepped=report.steps > 0)
        if norm == 0:
            return
        rate = self.rate.set(planned)
        limit = self.settings.max_grad_norm
        self.fabric.clip_gradients(self.module, self.optimizer, max_norm=limit, error_if_nonfinite=False)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.counters.steps += 1
        self.counters.skipped_in_a_row = 0
        report.steps += 1
        means.add({"loss": loss, "grad_norm": norm, "lr": rate, "clipped": float(norm > limit)})

    def _accumulate(
        self, name: str, batches: Sequence[Batch], parameters: Sequence[nn.Parameter]
    ) -> PartStep:
        """Add the gradient of one part to ``.grad``; every rank computes its share of the micro-batches."""
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        own = deal_batches(batches, self.fabric, masked=self.loss.masked)
        metrics = [self._backward(name, batch, last=batch is own[-1]) for batch in own]
        sums = merge_over_ranks(merge_metrics(metrics), self.fabric)
        step = PartStep(float(sums.pop("loss")), _norm(parameters), sums)
        for parameter, earlier in zip(parameters, before, strict=True):
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else parameter.grad.add_(earlier)
        return step

    def _backward(self, name: str, batch: Batch, *, last: bool) -> dict[str, Tensor]:
        """Run one micro-batch; ranks exchange gradients at the part's last one alone. Returns its metric sums with its loss."""
        ranks = self.fabric.world_size
        module = cast(_FabricModule, self.module)
        with self.fabric.no_backward_sync(module, enabled=ranks > 1 and not last):
            out = self.loss.compute(name, batch.to(self.fabric.device))
            # ranks average their gradients, but the denominator is already that of all of them
            self.fabric.backward(out["loss"] * ranks)
        return {**out, "loss": out["loss"].detach()}

    def _skip(self, minibatch: Sequence[Row], report: UpdateReport) -> None:
        """Count and dump a minibatch whose loss or gradient is not finite."""
        self.optimizer.zero_grad(set_to_none=True)
        self.counters.skipped_in_a_row += 1
        report.skipped += 1
        count = self.counters.skipped_in_a_row
        where = ""
        if self.settings.dump_folder is not None and self.fabric.is_global_zero:
            folder = Path(self.settings.dump_folder)
            path = folder / f"{self.label}-step{self.counters.steps}-skip{count}.pt"
            rows: list[Any] = list(minibatch)
            with writing("a skipped minibatch", path):
                folder.mkdir(parents=True, exist_ok=True)
                torch.save([asdict(row) for row in rows], path)
            where = f"; the last one is in {path}"
        if count >= self.settings.max_skips:
            raise TrainingStopped(
                f"{self.owner} skipped {count} minibatches in a row: loss or gradient norm not finite{where}"
            )


def _norm(parameters: Sequence[nn.Parameter]) -> float:
    """Norm of the whole gradient, 0 without any."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(grads) if grads else torch.zeros(())
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
