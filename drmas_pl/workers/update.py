"""The optimizer steps of one worker group in one iteration.

Rows are shuffled into minibatches; a minibatch is one optimizer step. Each is computed in micro-batches of one agent and of
similar length under a token budget. Denominators are those of the whole minibatch, so neither the budget nor the order changes
the gradient. A minibatch with a non-finite loss or gradient norm is not applied but dumped and counted.

On several ranks every rank is given all rows and computes its share of each minibatch's micro-batches. Losses and metrics are summed
over ranks before anything is decided, so all of them step, skip and stop together.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

import torch
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drmas_pl.agent import Agent
from drmas_pl.batch import Row, TokenBatch, collate
from drmas_pl.errors import TrainingStopped
from drmas_pl.functional.metrics import mean_metrics, merge_metrics
from drmas_pl.workers.offload import Offload
from drmas_pl.workers.ranks import deal_batches, merge_over_ranks
from drmas_pl.workers.scoring import chunk_rows

if TYPE_CHECKING:
    from drmas_pl.workers.group import WorkerGroup


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """How an iteration's rows become optimizer steps.

    Attributes:
        updates_per_iteration: Minibatches per pass over the rows; 1 is strictly on-policy.
        epochs: Passes over the rows.
        max_grad_norm: Clip of the group's gradient norm.
        micro_batch_tokens: Largest number of tokens computed at once, with padding where there is any; memory grows with it, results
            do not change.
        activation_checkpointing: Keep the inputs of layers alone and compute the rest again in backward: less memory, more time.
        compile: Compile norms and feed-forward blocks for training, which pays on accelerators; results change by rounding.
        old_logp: Take the ratio against the ``engine``'s log-probs or ``recompute`` them with one forward before the first step.
        mismatch_alarm: Mean absolute difference of engine and trainer log-probs above which a warning is logged.
        max_skips: Number of skipped minibatches in a row after which the run stops.
        dump_folder: Where skipped minibatches are written; None writes nothing.
        offload: What leaves the accelerator while others work: ``none``, the ``optimizer`` state, or ``all``.
    """

    updates_per_iteration: int = 1
    epochs: int = 1
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 16384
    activation_checkpointing: bool = False
    compile: bool = False
    old_logp: Literal["engine", "recompute"] = "engine"
    mismatch_alarm: float = 0.02
    max_skips: int = 3
    dump_folder: str | None = None
    offload: Offload = "none"

    def __post_init__(self) -> None:
        for name in ("updates_per_iteration", "epochs", "micro_batch_tokens", "max_skips"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.max_grad_norm > 0:
            raise ValueError(
                f"max_grad_norm must be positive, got {self.max_grad_norm}; use a large number to switch clipping off"
            )
        if self.offload not in get_args(Offload):
            raise ValueError(f"offload must be none, optimizer or all, got {self.offload!r}")
        if self.old_logp not in ("engine", "recompute"):
            raise ValueError(f"old_logp must be engine or recompute, got {self.old_logp!r}")


@dataclass(slots=True)
class UpdateReport:
    """What the optimizer steps did: counts, and means keyed by agent name and by metric."""

    steps: int = 0
    skipped: int = 0
    rows: int = 0
    group: dict[str, float] = field(default_factory=dict)
    agents: dict[str, dict[str, float]] = field(default_factory=dict)


class _Means:
    """Averages of metrics over optimizer steps or micro-batches, weighted."""

    def __init__(self) -> None:
        self.total: defaultdict[str, float] = defaultdict(float)
        self.weight: defaultdict[str, float] = defaultdict(float)

    def add(self, values: Mapping[str, float], weight: float = 1.0) -> None:
        for name, value in values.items():
            self.total[name] += value * weight
            self.weight[name] += weight

    def result(self) -> dict[str, float]:
        return {name: self.total[name] / self.weight[name] for name in self.total if self.weight[name] > 0}


def run_update(group: WorkerGroup, rows: Mapping[str, Sequence[Row]], *, seed: int) -> UpdateReport:
    """Run every optimizer step of the iteration; see :meth:`WorkerGroup.update`."""
    settings = group.settings.update
    everything = [row for name in sorted(rows) for row in rows[name]]
    report, means = UpdateReport(), _Means()
    agent_means: defaultdict[str, _Means] = defaultdict(_Means)
    if not everything:
        return report
    everything = _with_logprobs(group, everything)
    generator = torch.Generator().manual_seed(seed % (1 << 63))
    for minibatch in _minibatches(everything, settings, generator):
        _step(group, minibatch, report, means, agent_means)
    report.group = means.result()
    report.agents = {name: means.result() for name, means in agent_means.items()}
    return report


def _step(
    group: WorkerGroup,
    minibatch: Sequence[Row],
    report: UpdateReport,
    means: _Means,
    agent_means: Mapping[str, _Means],
) -> None:
    """Accumulate the gradient agent by agent, check it, clip it and step."""
    assert group.optimizer is not None
    settings, parameters = group.settings.update, [p for p in group.policy.parameters() if p.requires_grad]
    group.optimizer.zero_grad(set_to_none=True)
    agents: dict[str, dict[str, float]] = {}
    for name, agent in group.agents.items():
        batches = list(
            _micro_batches(agent, minibatch, settings.micro_batch_tokens, group.tokenizer.pad_token_id)
        )
        if batches:
            own = deal_batches(batches, group.fabric)
            first, stale = (
                report.steps + report.skipped == 0,
                _are_stale(minibatch, agent, group.weights_version),
            )
            agents[name] = _accumulate(group, agent, own, parameters, first=first, stale=stale)
            report.rows += sum(map(len, batches))
    if not agents:
        return
    loss = sum(metrics["loss"] for metrics in agents.values())
    norm = _norm(parameters)
    if not (math.isfinite(loss) and math.isfinite(norm)):
        _skip(group, minibatch, report)
        return
    for name, metrics in agents.items():
        agent_means[name].add(metrics)
    if norm == 0:
        return
    rate = group.set_rate()
    group.fabric.clip_gradients(
        group.module, group.optimizer, max_norm=settings.max_grad_norm, error_if_nonfinite=False
    )
    group.optimizer.step()
    group.optimizer.zero_grad(set_to_none=True)
    group.steps, group.skipped_in_a_row, report.steps = group.steps + 1, 0, report.steps + 1
    means.add({"loss": loss, "grad_norm": norm, "lr": rate, "clipped": float(norm > settings.max_grad_norm)})


def _accumulate(
    group: WorkerGroup,
    agent: Agent,
    batches: Sequence[TokenBatch],
    parameters: Sequence[nn.Parameter],
    *,
    first: bool,
    stale: bool,
) -> dict[str, float]:
    """Add one agent's gradient to ``.grad``; return its metrics with its loss and the norm of its own gradient."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    metrics = [_backward(group, agent, batch, last=batch is batches[-1]) for batch in batches]
    merged = merge_over_ranks(merge_metrics(metrics), group.fabric)
    loss = float(merged.pop("loss"))
    values = mean_metrics(merged)
    drift = {name: values.pop(name) for name in ("drift", "drift_max")}
    if stale:
        # the policy has moved since these rows were sampled, so that their log-probs say nothing about numerics
        values = {name: value for name, value in values.items() if name not in ("mismatch", "mismatch_max")}
        values |= {"policy_shift": drift["drift"], "policy_shift_max": drift["drift_max"]} if first else {}
    elif first and group.settings.update.old_logp == "engine":
        # nothing was stepped yet, so trainer and engine have the same weights and any drift is numerics
        values |= {"mismatch": drift["drift"], "mismatch_max": drift["drift_max"]}
        _warn_of_mismatch(group, agent, drift["drift"])
    norm = _norm(parameters)
    for parameter, earlier in zip(parameters, before, strict=True):
        if earlier is not None:
            parameter.grad = earlier if parameter.grad is None else parameter.grad.add_(earlier)
    return {**values, "loss": loss, "grad_norm": norm}


def _backward(group: WorkerGroup, agent: Agent, batch: TokenBatch, *, last: bool) -> dict[str, Tensor]:
    """Run one micro-batch; ranks exchange gradients at the agent's last one alone. Returns its metric sums with its loss."""
    ranks, module = group.fabric.world_size, cast(_FabricModule, group.module)
    with group.fabric.no_backward_sync(module, enabled=ranks > 1 and not last):
        out = agent.training_step(batch.to(group.fabric.device))
        # ranks average their gradients, but the denominator is already that of all of them
        group.fabric.backward(out["loss"] * ranks)
    return {**out, "loss": out["loss"].detach()}


def _are_stale(rows: Sequence[Row], agent: Agent, version: int) -> bool:
    """Tell whether older weights than ``version`` sampled any of the agent's rows."""
    return any(row.agent == agent.name and row.weights_version not in (None, version) for row in rows)


def _norm(parameters: Sequence[nn.Parameter]) -> float:
    """Norm of the whole gradient, 0 without any."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(grads) if grads else torch.zeros(())
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _warn_of_mismatch(group: WorkerGroup, agent: Agent, mismatch: float) -> None:
    """Say once that engine and trainer disagree, since ratios then start away from 1."""
    if mismatch > group.settings.update.mismatch_alarm and agent.name not in group.mismatched:
        group.mismatched.add(agent.name)
        log.warning(
            "engine and trainer disagree for agent %r: mean |log-prob difference| %.3g before any step; "
            "set update.old_logp=recompute and objective.correction=token",
            agent.name,
            mismatch,
        )


def _skip(group: WorkerGroup, minibatch: Sequence[Row], report: UpdateReport) -> None:
    """Count and dump a minibatch whose loss or gradient is not finite."""
    assert group.optimizer is not None
    group.optimizer.zero_grad(set_to_none=True)
    group.skipped_in_a_row, report.skipped = group.skipped_in_a_row + 1, report.skipped + 1
    where = ""
    if group.settings.update.dump_folder is not None and group.fabric.is_global_zero:
        path = (
            Path(group.settings.update.dump_folder)
            / f"{group.name}-step{group.steps}-skip{group.skipped_in_a_row}.pt"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save([asdict(row) for row in minibatch], path)
        where = f"; the last one is in {path}"
    if group.skipped_in_a_row >= group.settings.update.max_skips:
        raise TrainingStopped(
            f"worker group {group.name!r} skipped {group.skipped_in_a_row} minibatches in a row: loss or gradient norm not finite{where}"
        )


def _minibatches(
    rows: Sequence[Row], settings: UpdateSettings, generator: torch.Generator
) -> Iterator[list[Row]]:
    """Yield shuffled minibatches of nearly equal size for every epoch."""
    count = min(settings.updates_per_iteration, len(rows))
    for _ in range(settings.epochs):
        order = torch.randperm(len(rows), generator=generator).tolist()
        for index in range(count):
            start, stop = index * len(rows) // count, (index + 1) * len(rows) // count
            yield [rows[position] for position in order[start:stop]]


def _micro_batches(agent: Agent, minibatch: Sequence[Row], budget: int, pad_id: int) -> Iterator[TokenBatch]:
    """Yield one agent's rows that matter to the gradient, packed by length under the token budget."""
    lengths = torch.tensor([len(row.response_ids) for row in minibatch])
    weights = torch.tensor([row.weight for row in minibatch])
    denominator = float(agent.objective.denominator_from_lengths(lengths, weight=weights))
    rows = [
        row
        for row in minibatch
        if row.agent == agent.name and (row.has_signal or agent.objective.needs_zero_advantage_rows)
    ]
    for chunk in chunk_rows(agent.policy, rows, budget):
        yield collate([rows[index] for index in chunk], pad_id=pad_id, denominator=denominator)


def _with_logprobs(group: WorkerGroup, rows: Sequence[Row]) -> list[Row]:
    """Attach the trainer's and the reference policy's log-probs where the settings ask for them."""
    out = []
    for agent in group.agents.values():
        own = [row for row in rows if row.agent == agent.name]
        if group.settings.update.old_logp == "recompute":
            own = [
                replace(row, old_logp=logp)
                for row, logp in zip(own, group.score(group.module, own, agent), strict=True)
            ]
        if group.reference is not None:
            own = [
                replace(row, ref_logp=logp)
                for row, logp in zip(own, group.score(group.reference, own, agent), strict=True)
            ]
        out += own
    return out
