"""A critic and its optimizer: judges the tokens of its agents and learns from what they led to.

Minibatches, denominators and guard rails are those of the policies' updates, see :mod:`drmas_pl.workers.learner`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.errors import CheckpointError, TrainingStopped
from drmas_pl.functional.metrics import merge_metrics
from drmas_pl.functional.values import clipped_value_loss, explained_variance
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.models.value_head import ValueBatch, ValueModel, ValueRow, collate_values, response_values
from drmas_pl.optim import LearningRate, OptimizerSettings, build_optimizer
from drmas_pl.utils.storage import writing
from drmas_pl.utils.validation import check_fields
from drmas_pl.workers.offload import Offload, WorkerOffload, device_meter
from drmas_pl.workers.randomness import ready_to_learn
from drmas_pl.workers.ranks import deal, masked_like, merge_over_ranks
from drmas_pl.workers.scoring import chunk_by_tokens, numbers_of_rows
from drmas_pl.workers.snapshot import read_snapshot, write_snapshot
from drmas_pl.workers.strategies import check_precision, reshard
from drmas_pl.workers.totals import Means
from drmas_pl.workers.weights import Layout, load_state, save_state

# what the name of a critic begins with where worker groups have names too
CRITIC = "critic-"


@dataclass(frozen=True, slots=True)
class ValueWorkerSettings:
    """How a critic learns.

    Attributes:
        optimizer: Optimizer and schedule.
        value_clip: How far a value may move from that before the update until its token's gradient is cut; None for no bound.
        updates_per_iteration: Minibatches per pass over the rows.
        epochs: Passes over the rows.
        max_grad_norm: Clip of the gradient norm.
        micro_batch_tokens: Largest number of padded tokens computed at once; memory grows with it, results do not change.
        activation_checkpointing: Compute layers again in backward: less memory, more time.
        offload: What leaves the accelerator while the critic is not needed: ``none``, the ``optimizer`` state, or ``all``.
        max_skips: Number of skipped minibatches in a row after which the run stops.
        warmup: First iterations in which critics learn and policies do not.
        dump_folder: Where skipped minibatches are written; None writes nothing.
        total_steps: Planned optimizer steps of the whole run, for the schedule, whether or not all of them are made.
        checkpoint: How sharded weights and optimizer state are saved: put together, or every rank its ``shards``.

    Raises:
        ValueError: A number is out of range.
    """

    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    value_clip: float | None = 0.2
    updates_per_iteration: int = 1
    epochs: int = 1
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 16384
    activation_checkpointing: bool = False
    offload: Offload = "none"
    max_skips: int = 3
    warmup: int = 0
    dump_folder: str | None = None
    total_steps: int = 1
    checkpoint: Layout = "whole"

    def __post_init__(self) -> None:
        check_fields(self)
        least = {
            "updates_per_iteration": 1,
            "epochs": 1,
            "micro_batch_tokens": 1,
            "max_skips": 1,
            "warmup": 0,
        }
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")
        if not self.max_grad_norm > 0:
            raise ValueError(
                f"max_grad_norm must be positive, got {self.max_grad_norm}; use a large number to switch clipping off"
            )
        if self.value_clip is not None and not self.value_clip > 0:
            raise ValueError(
                f"value_clip must be positive, got {self.value_clip}; use null to switch clipping off"
            )


@dataclass(slots=True)
class CriticReport:
    """What one iteration did to a critic: optimizer steps, skipped minibatches, and means over tokens or steps by metric."""

    steps: int = 0
    skipped: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


class ValueWorker:
    """One value model with its optimizer, and the agents whose tokens it judges.

    Attributes:
        parameter_count: Number of parameters of the model.
        steps: Optimizer steps made so far.
        planned_steps: Optimizer steps that were planned so far, those with a skipped minibatch included.

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

    counters = ("steps", "planned_steps", "skipped_in_a_row")
    max_retries = 0
    owns_devices = False

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
        self.name = name
        self.label = f"{CRITIC}{name}"
        self.changed = True
        self.model = model
        self.agents = frozenset(agents)
        self.pad_id = pad_id
        self.fabric = fabric
        self.settings = settings or ValueWorkerSettings()
        self.steps = 0
        self.planned_steps = 0
        self.skipped_in_a_row = 0
        self.parameter_count = sum(parameter.numel() for parameter in model.parameters())
        if self.settings.activation_checkpointing:
            checkpoint_activations(model.backbone)
        self.module = fabric.setup_module(model)
        plain = build_optimizer(model.parameters(), self.settings.optimizer)
        self._rate = LearningRate(plain, self.settings.optimizer, self.settings.total_steps)
        optimizer: Any = fabric.setup_optimizers(plain)
        self.optimizer: torch.optim.Optimizer = optimizer
        self.module.eval()
        self.offload = WorkerOffload(
            name,
            what=self.settings.offload,
            models=[model],
            optimizer=optimizer,
            device=fabric.device,
            meter=device_meter(fabric.device),
        )
        self.offload.hold(set())

    def values(self, rows: Sequence[TrainingRow]) -> list[tuple[float, ...]]:
        """Return the value of each sampled token of ``rows``, in order."""
        judge = partial(response_values, self.module)
        with self.offload.present("weights"):
            values = numbers_of_rows(
                judge, rows, budget=self.settings.micro_batch_tokens, pad_id=self.pad_id, fabric=self.fabric
            )
            reshard(self.model)
        return values

    def update(self, rows: Sequence[ValueRow], *, seed: int) -> CriticReport:
        """Run the iteration's optimizer steps.

        Args:
            rows: What the critic said and what became of it.
            seed: Seed of the shuffle into minibatches.

        Raises:
            TrainingStopped: Too many minibatches in a row had to be skipped.
        """
        report, means, planned = CriticReport(), Means(), self.planned_steps
        self.planned_steps += self.settings.updates_per_iteration * self.settings.epochs
        if not rows:
            return report
        generator = torch.Generator().manual_seed(seed % (1 << 63))
        with self.training():
            for _ in range(self.settings.epochs):
                order = torch.randperm(len(rows), generator=generator)
                for part in order.tensor_split(min(self.settings.updates_per_iteration, len(rows))):
                    self._rate.set(planned)
                    self._step([rows[index] for index in part.tolist()], report, means)
                    planned += 1
        report.metrics = means.result()
        explained = float(explained_variance(_column(rows, "values"), _column(rows, "returns")))
        report.metrics |= {"explained_variance": explained} if math.isfinite(explained) else {}
        return report

    def begin_update(self, rows: Sequence[ValueRow], *, seed: int) -> Callable[[], CriticReport]:
        """Run :meth:`update` and return what gives its report."""
        report = self.update(rows, seed=seed)
        return lambda: report

    def snapshot(self, folder: Path) -> None:
        """Write this rank's part of the state from which a stage is repeated; see :mod:`drmas_pl.workers.snapshot`."""
        write_snapshot(self, folder)

    def restore(self, folder: Path | None) -> None:
        """Take over what :meth:`snapshot` wrote; every rank has to call it."""
        if folder is not None:
            read_snapshot(self, folder)

    def describe(self) -> str:
        """Return nothing: the worker is in this process."""
        return ""

    def save(self, folder: Path) -> None:
        """Write weights, optimizer state and counters; every rank has to call it, of what is not in shares the first one writes all."""
        from safetensors.torch import save_file

        def write_whole(weights: Mapping[str, Tensor] | None) -> None:
            found = self.model.state_dict() if weights is None else weights
            save_file(
                {name: tensor.contiguous() for name, tensor in found.items()}, folder / "model.safetensors"
            )

        with self.offload.present("weights", "optimizer"):
            layout = self.settings.checkpoint
            save_state(
                self.model, self.optimizer, folder, layout=layout, fabric=self.fabric, write_whole=write_whole
            )
        if self.fabric.is_global_zero:
            counters = {
                "steps": self.steps,
                "planned_steps": self.planned_steps,
                "skipped_in_a_row": self.skipped_in_a_row,
            }
            (folder / "critic.json").write_text(
                json.dumps({"agents": sorted(self.agents), **counters}, indent=1)
            )
        self.fabric.barrier()

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote.

        Raises:
            CheckpointError: A file is missing or does not fit this critic.
        """
        from safetensors import SafetensorError

        try:
            record = json.loads((folder / "critic.json").read_text())
            if record["agents"] != sorted(self.agents):
                raise ValueError(f"it judges {record['agents']}, this one {sorted(self.agents)}")
            with self.offload.present("weights", "optimizer"):
                load_state(self.model, self.optimizer, folder)
            self.steps, self.skipped_in_a_row = record["steps"], record["skipped_in_a_row"]
            self.planned_steps = record.get("planned_steps", self.steps)
        except (
            OSError,
            ValueError,
            KeyError,
            RuntimeError,
            EOFError,
            UnpicklingError,
            SafetensorError,
        ) as error:
            raise CheckpointError(
                f"checkpoint {folder} does not fit critic {self.name!r}: {error}"
            ) from error

    def take_over(self) -> None:
        """Do nothing: nothing generates with these weights."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold weights and optimizer state ready for updates."""
        with self.offload.present("weights", "optimizer"), ready_to_learn(self.module):
            yield

    def _step(self, minibatch: Sequence[ValueRow], report: CriticReport, means: Means) -> None:
        """Accumulate the gradient of a minibatch, check it, clip it and step."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer.zero_grad(set_to_none=True)
        loss, clipped = self._accumulate(minibatch)
        total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._skip(minibatch, report)
            return
        self.fabric.clip_gradients(
            self.module, self.optimizer, max_norm=self.settings.max_grad_norm, error_if_nonfinite=False
        )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps, self.skipped_in_a_row, report.steps = self.steps + 1, 0, report.steps + 1
        tokens = sum(len(line.values) for line in minibatch)
        means.add({"value_loss": loss, "clipped": clipped}, weight=tokens)
        means.add({"grad_norm": norm, "lr": self.optimizer.param_groups[0]["lr"]})

    def _accumulate(self, minibatch: Sequence[ValueRow]) -> tuple[float, float]:
        """Add the minibatch's gradient to ``.grad``; return its loss and the share of clipped tokens."""
        ranks, parts = self.fabric.world_size, list(self._micro_batches(minibatch))
        own = deal(parts, _stand_in(parts[-1]), rank=self.fabric.global_rank, ranks=ranks)
        sums = []
        for place, part in enumerate(own):
            with self.fabric.no_backward_sync(self.module, enabled=place + 1 < len(own)):
                batch = part.tokens.to(self.fabric.device)
                assert batch.denominator is not None, "a minibatch is divided as a whole"
                found = clipped_value_loss(
                    response_values(self.module, batch),
                    part.values.to(self.fabric.device),
                    part.returns.to(self.fabric.device),
                    batch.response_mask,
                    denominator=batch.denominator,
                    clip=self.settings.value_clip,
                )
                # ranks average their gradients, but the denominator is already that of all of them
                self.fabric.backward(found.loss * ranks)
            sums.append({"value_loss": found.loss.detach(), "clipped": found.clipped / batch.denominator})
        merged = merge_over_ranks(merge_metrics(sums), self.fabric)
        return float(merged["value_loss"]), float(merged["clipped"])

    def _micro_batches(self, minibatch: Sequence[ValueRow]) -> Iterator[ValueBatch]:
        rows = [line.row for line in minibatch]
        tokens = sum(len(row.response_ids) for row in rows)
        for chunk in chunk_by_tokens(rows, self.settings.micro_batch_tokens):
            yield collate_values(
                [minibatch[index] for index in chunk], pad_id=self.pad_id, denominator=tokens
            )

    def _skip(self, minibatch: Sequence[ValueRow], report: CriticReport) -> None:
        """Count and dump a minibatch whose loss or gradient is not finite."""
        self.optimizer.zero_grad(set_to_none=True)
        self.skipped_in_a_row, report.skipped = self.skipped_in_a_row + 1, report.skipped + 1
        where = ""
        if self.settings.dump_folder is not None and self.fabric.is_global_zero:
            path = (
                Path(self.settings.dump_folder)
                / f"critic-{self.name}-step{self.steps}-skip{self.skipped_in_a_row}.pt"
            )
            with writing("a skipped minibatch", path):
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.save([asdict(line) for line in minibatch], path)
            where = f"; the last one is in {path}"
        if self.skipped_in_a_row >= self.settings.max_skips:
            raise TrainingStopped(
                f"critic {self.name!r} skipped {self.skipped_in_a_row} minibatches in a row: loss or gradient norm not finite{where}"
            )


def _stand_in(part: ValueBatch) -> ValueBatch:
    """Return a micro-batch that changes nothing, for a rank that has fewer than another one."""
    tokens = masked_like(part.tokens)
    nothing = torch.zeros(tokens.response_mask.shape)
    return ValueBatch(tokens, nothing, nothing)


def _column(rows: Sequence[ValueRow], name: str) -> Tensor:
    """Lay the numbers of all rows' tokens one behind the other."""
    numbers: list[Any] = [number for row in rows for number in getattr(row, name)]
    return torch.tensor(numbers, dtype=torch.float64)
