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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

import torch
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow
from drmas_pl.errors import TrainingStopped
from drmas_pl.functional.metrics import merge_metrics
from drmas_pl.utils.storage import writing
from drmas_pl.utils.validation import check_fields
from drmas_pl.workers.minibatches import AgentWeight, loss_divisors, micro_batches, split_rows
from drmas_pl.workers.offload import Offload
from drmas_pl.workers.randomness import layer_drawing_in_evaluation
from drmas_pl.workers.ranks import deal_batches, merge_over_ranks
from drmas_pl.workers.strategies import reshard
from drmas_pl.workers.totals import AgentStep, AgentTotals, Means

if TYPE_CHECKING:
    from drmas_pl.workers.policy_worker import PolicyWorker


log = logging.getLogger(__name__)
# enough for every layer to show whether it is random
_PROBE_TOKENS = 16


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
        dropout: Let dropout and router noise of the model act in updates; engines sample without them, so ratios then start away from 1.
        old_logp: Take the ratio against the ``engine``'s log-probs, or ``recompute`` them: before the first step they are those of the
            policy in the same forward pass, so that every ratio is exactly 1, and later those of a forward pass before it.
        agent_weight: How much an agent counts that shares weights with others: in proportion to its ``token``s or ``turn``s in the
            minibatch, or each ``agent`` alike; None lets the objective's aggregation decide, see :func:`.minibatches.loss_divisors`.
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
    dropout: bool = False
    old_logp: Literal["engine", "recompute"] = "engine"
    agent_weight: AgentWeight | None = None
    mismatch_alarm: float = 0.02
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
        if self.old_logp not in ("engine", "recompute"):
            raise ValueError(f"old_logp must be engine or recompute, got {self.old_logp!r}")
        if self.agent_weight is not None and self.agent_weight not in get_args(AgentWeight):
            raise ValueError(f"agent_weight must be token, turn, agent or null, got {self.agent_weight!r}")


@dataclass(slots=True)
class UpdateReport:
    """What the optimizer steps did: counts, means over steps by metric, and each agent's metrics over all of its tokens."""

    steps: int = 0
    skipped: int = 0
    rows: int = 0
    group: dict[str, float] = field(default_factory=dict)
    agents: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Progress:
    """How far an iteration's update has come.

    Attributes:
        report: What is known so far.
        agents: Metrics by agent.
        means: Metrics of the group.
        stale: Agents of whom older weights sampled any row.
        planned: Number of the present minibatch among those planned for the whole run.
    """

    report: UpdateReport
    stale: frozenset[str]
    planned: int
    agents: defaultdict[str, AgentTotals] = field(default_factory=lambda: defaultdict(AgentTotals))
    means: Means = field(default_factory=Means)


def run_update(group: PolicyWorker, rows: Mapping[str, Sequence[TrainingRow]], *, seed: int) -> UpdateReport:
    """Run every optimizer step of the iteration; see :meth:`PolicyWorker.update`."""
    settings = group.settings.update
    everything = [row for name in sorted(rows) for row in rows[name]]
    progress = _Progress(
        UpdateReport(), _stale_agents(everything, group.weights_version), group.planned_steps
    )
    # a schedule that counted only the steps that are made would not be at its end when the run is
    group.planned_steps += settings.updates_per_iteration * settings.epochs
    if not everything:
        return progress.report
    parts = split_rows(
        len(everything),
        updates=settings.updates_per_iteration,
        epochs=settings.epochs,
        generator=torch.Generator().manual_seed(seed % (1 << 63)),
    )
    everything = _with_logprobs(group, everything, later={place for part in parts[1:] for place in part})
    for part in parts:
        _step(group, [everything[place] for place in part], progress)
        progress.planned += 1
    recomputed = settings.old_logp == "recompute"
    progress.report.group = progress.means.result()
    progress.report.agents = {
        name: totals.result(stale=name in progress.stale, recomputed=recomputed)
        for name, totals in progress.agents.items()
    }
    return progress.report


def _step(group: PolicyWorker, minibatch: Sequence[TrainingRow], progress: _Progress) -> None:
    """Accumulate the gradient agent by agent, check it, clip it and step."""
    assert group.optimizer is not None
    settings, report = group.settings.update, progress.report
    parameters = [parameter for parameter in group.policy.parameters() if parameter.requires_grad]
    group.optimizer.zero_grad(set_to_none=True)
    agents: dict[str, AgentStep] = {}
    # until the first step the policy is the old one, and its own log-probs are free of what another batch would round differently
    on_policy = settings.old_logp == "recompute" and not report.steps
    for name, divisor in loss_divisors(group.agents, minibatch, settings.agent_weight).items():
        batches = list(
            micro_batches(
                group.agents[name],
                minibatch,
                budget=settings.micro_batch_tokens,
                pad_id=group.tokenizer.pad_token_id,
                denominator=divisor,
                on_policy=on_policy,
            )
        )
        if batches:
            agents[name] = _accumulate(group, group.agents[name], batches, parameters)
            report.rows += sum(map(len, batches))
            if not report.steps and name not in progress.stale:
                _warn_of_mismatch(group, name, agents[name].drift, minibatch)
    if not agents:
        return
    loss, norm = sum(step.loss for step in agents.values()), _norm(parameters)
    if not (math.isfinite(loss) and math.isfinite(norm)):
        _skip(group, minibatch, report)
        return
    for name, step in agents.items():
        progress.agents[name].add(step, stepped=report.steps > 0)
    if norm == 0:
        return
    rate = group.set_rate(progress.planned)
    group.fabric.clip_gradients(
        group.module, group.optimizer, max_norm=settings.max_grad_norm, error_if_nonfinite=False
    )
    group.optimizer.step()
    group.optimizer.zero_grad(set_to_none=True)
    group.steps, group.skipped_in_a_row, report.steps = group.steps + 1, 0, report.steps + 1
    progress.means.add(
        {"loss": loss, "grad_norm": norm, "lr": rate, "clipped": float(norm > settings.max_grad_norm)}
    )


def _accumulate(
    group: PolicyWorker, agent: Agent, batches: Sequence[TokenBatch], parameters: Sequence[nn.Parameter]
) -> AgentStep:
    """Add one agent's gradient to ``.grad``; every rank computes its share of the micro-batches."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    own = deal_batches(batches, group.fabric)
    metrics = [_backward(group, agent, batch, last=batch is own[-1]) for batch in own]
    sums = merge_over_ranks(merge_metrics(metrics), group.fabric)
    step = AgentStep(float(sums.pop("loss")), _norm(parameters), sums)
    for parameter, earlier in zip(parameters, before, strict=True):
        if earlier is not None:
            parameter.grad = earlier if parameter.grad is None else parameter.grad.add_(earlier)
    return step


def _backward(group: PolicyWorker, agent: Agent, batch: TokenBatch, *, last: bool) -> dict[str, Tensor]:
    """Run one micro-batch; ranks exchange gradients at the agent's last one alone. Returns its metric sums with its loss."""
    ranks, module = group.fabric.world_size, cast(_FabricModule, group.module)
    with group.fabric.no_backward_sync(module, enabled=ranks > 1 and not last):
        out = agent.training_step(batch.to(group.fabric.device))
        # ranks average their gradients, but the denominator is already that of all of them
        group.fabric.backward(out["loss"] * ranks)
    return {**out, "loss": out["loss"].detach()}


def _stale_agents(rows: Sequence[TrainingRow], version: int) -> frozenset[str]:
    """Name the agents of whom older weights than ``version`` sampled any row."""
    return frozenset(row.agent for row in rows if row.weights_version not in (None, version))


def _norm(parameters: Sequence[nn.Parameter]) -> float:
    """Norm of the whole gradient, 0 without any."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(grads) if grads else torch.zeros(())
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _warn_of_mismatch(
    group: PolicyWorker, name: str, mismatch: float, minibatch: Sequence[TrainingRow]
) -> None:
    """Say once what may be wrong where engine and trainer disagree, since ratios then start away from 1."""
    settings = group.settings.update
    if mismatch <= settings.mismatch_alarm or name in group.mismatched:
        return
    group.mismatched.add(name)
    remedy = _remedy(group, group.agents[name], minibatch[0])
    if remedy is not None:
        log.warning(
            "engine and trainer disagree for agent %r: mean |log-prob difference| %.3g before any step; %s",
            name,
            mismatch,
            remedy,
        )


def _remedy(group: PolicyWorker, agent: Agent, row: TrainingRow) -> str | None:
    """Say why engine and trainer disagree, or what helps; None where the objective corrects for it."""
    settings = group.settings.update
    if settings.dropout:
        return "since update.dropout=true; engines sample without dropout"
    layer = _random_layer(group, row)
    if layer is not None:
        return f"{layer} draws random numbers in evaluation mode, so that no log-prob of this model can be relied on"
    if agent.objective.correction is not None:
        return None
    recompute = "" if settings.old_logp == "recompute" else "update.old_logp=recompute and "
    return f"set {recompute}objective.correction=token"


def _random_layer(group: PolicyWorker, row: TrainingRow) -> str | None:
    """Name a layer that makes two equal forward passes differ, tried on a few tokens."""
    ids = (row.prompt_ids + row.response_ids)[:_PROBE_TOKENS]
    with group.fabric.autocast():
        found = layer_drawing_in_evaluation(group.policy, ids, group.fabric.device)
    reshard(group.policy)
    return found


def _skip(group: PolicyWorker, minibatch: Sequence[TrainingRow], report: UpdateReport) -> None:
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
        with writing("a skipped minibatch", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save([asdict(row) for row in minibatch], path)
        where = f"; the last one is in {path}"
    if group.skipped_in_a_row >= group.settings.update.max_skips:
        raise TrainingStopped(
            f"worker group {group.name!r} skipped {group.skipped_in_a_row} minibatches in a row: loss or gradient norm not finite{where}"
        )


def _with_logprobs(
    group: PolicyWorker, rows: Sequence[TrainingRow], *, later: Collection[int]
) -> list[TrainingRow]:
    """Attach the trainer's and the reference policy's log-probs where the settings ask for them.

    Args:
        group: The group.
        rows: Rows of all agents.
        later: Places of the rows that are learnt from after the first optimizer step; others need no log-probs from before it.
    """
    out = list(rows)
    for agent in group.agents.values():
        places = [place for place, row in enumerate(rows) if row.agent == agent.name]
        if group.settings.update.old_logp == "recompute":
            chosen = [place for place in places if place in later]
            scored = group.score(group.module, [rows[place] for place in chosen], agent)
            for place, logp in zip(chosen, scored, strict=True):
                out[place] = replace(out[place], old_logp=logp)
        if group.reference is not None:
            scored = group.score(group.reference, [rows[place] for place in places], agent)
            for place, logp in zip(places, scored, strict=True):
                out[place] = replace(out[place], ref_logp=logp)
    return out
