"""What policies and critics learn from their rows; the steps themselves are those of :mod:`drmas_pl.workers.learner`."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow, collate
from drmas_pl.functional.values import clipped_value_loss, explained_variance
from drmas_pl.kernels.response_values import response_values
from drmas_pl.models.value_head import ValueBatch, ValueRow, collate_values
from drmas_pl.workers.learner import (
    LearnerCounters,
    UpdateLoss,
    UpdateReport,
    UpdateSettings,
)
from drmas_pl.workers.minibatches import loss_divisors
from drmas_pl.workers.randomness import layer_drawing_in_evaluation
from drmas_pl.workers.ranks import masked_like
from drmas_pl.workers.scoring import chunk_rows
from drmas_pl.workers.strategies import reshard
from drmas_pl.workers.totals import AgentTotals, Means, PartStep

log = logging.getLogger(__name__)
# enough for every layer to show whether it is random
_PROBE_TOKENS = 16

Score = Callable[[nn.Module, Sequence[TrainingRow], Agent], Sequence[tuple[float, ...]]]


@dataclass(slots=True, kw_only=True)
class PolicyLoss(UpdateLoss[TrainingRow, TokenBatch]):
    """The objectives of the agents that share a policy; the rows of each agent are a part of a minibatch.

    Attributes:
        agents: The agents by name, bound to the policy.
        policy: The policy as Fabric has wrapped it.
        reference: Its reference policy, or None.
        score: Returns the log-probs of an agent's rows under a policy.
        pad_id: Padding id.
        fabric: Of the policy.
        settings: How it learns.
        counters: Tell the version of its weights.
        mismatched: Agents of whom a mismatch was told.
    """

    agents: Mapping[str, Agent]
    policy: nn.Module
    reference: nn.Module | None
    score: Score
    pad_id: int
    fabric: Fabric
    settings: UpdateSettings
    counters: LearnerCounters
    mismatched: set[str] = field(default_factory=set)

    def prepare(self, rows: Sequence[TrainingRow], *, later: Collection[int]) -> list[TrainingRow]:
        """Attach the trainer's log-probs, to those of ``later`` minibatches, and the reference policy's where the settings ask for them."""
        out = list(rows)
        recompute = self.settings.old_logp == "recompute"
        for agent in self.agents.values():
            places = [place for place, row in enumerate(rows) if row.agent == agent.name]
            chosen = [place for place in places if place in later] if recompute else []
            if recompute:
                scored = self.score(self.policy, [rows[place] for place in chosen], agent)
                for place, logp in zip(chosen, scored, strict=True):
                    out[place] = replace(out[place], old_logp=logp)
            if self.reference is not None:
                scored = self.score(self.reference, [rows[place] for place in places], agent)
                for place, logp in zip(places, scored, strict=True):
                    out[place] = replace(out[place], ref_logp=logp)
        return out

    def start_totals(self, rows: Sequence[TrainingRow]) -> PolicyTotals:
        """Return what counts the agents' minibatches."""
        return PolicyTotals(self._stale(rows), recomputed=self.settings.old_logp == "recompute")

    def micro_batches(
        self, minibatch: Sequence[TrainingRow], *, stepped: bool
    ) -> dict[str, list[TokenBatch]]:
        """Cut each agent's rows that matter to the gradient into micro-batches, packed by length."""
        # until the first step the policy is the old one, and its own log-probs are free of what another batch would round differently
        on_policy = self.settings.old_logp == "recompute" and not stepped
        divisors = loss_divisors(self.agents, minibatch, self.settings.agent_weight)
        found: dict[str, list[TokenBatch]] = {}
        for name, divisor in divisors.items():
            agent = self.agents[name]
            own = [row for row in minibatch if row.agent == name]
            if not agent.objective.needs_zero_advantage_rows:
                own = [row for row in own if row.has_signal]
            for chunk in chunk_rows(agent.policy, own, self.settings.micro_batch_tokens):
                rows = [own[index] for index in chunk]
                batch = collate(rows, pad_id=self.pad_id, denominator=divisor, on_policy=on_policy)
                found.setdefault(name, []).append(batch)
        return found

    def compute(self, part: str, batch: TokenBatch) -> dict[str, Tensor]:
        """Return what the agent's training step returns."""
        return self.agents[part].training_step(batch)

    def masked(self, batch: TokenBatch) -> TokenBatch:
        """Return a batch that contributes nothing."""
        return masked_like(batch)

    def inspect(self, minibatch: Sequence[TrainingRow], steps: Mapping[str, PartStep]) -> None:
        """Say once what may be wrong where engine and trainer disagree, since ratios then start away from 1."""
        for name in sorted(steps.keys() - self._stale(minibatch) - self.mismatched):
            mismatch = steps[name].drift
            if mismatch <= self.settings.mismatch_alarm:
                continue
            self.mismatched.add(name)
            remedy = self._remedy(self.agents[name], minibatch[0])
            if remedy is not None:
                log.warning(
                    "engine and trainer disagree for agent %r: mean |log-prob difference| %.3g before any step; %s",
                    name,
                    mismatch,
                    remedy,
                )

    def _stale(self, rows: Sequence[TrainingRow]) -> frozenset[str]:
        """Name the agents of whom older weights than the present ones sampled any row."""
        version = self.counters.weights_version
        return frozenset(row.agent for row in rows if row.weights_version not in (None, version))

    def _remedy(self, agent: Agent, row: TrainingRow) -> str | None:
        """Say why engine and trainer disagree, or what helps; None where the objective corrects for it."""
        if self.settings.dropout:
            return "since update.dropout=true; engines sample without dropout"
        layer = self._random_layer(row)
        if layer is not None:
            return f"{layer} draws random numbers in evaluation mode, so that no log-prob of this model can be relied on"
        if agent.objective.correction is not None:
            return None
        recompute = "" if self.settings.old_logp == "recompute" else "update.old_logp=recompute and "
        return f"set {recompute}objective.correction=token"

    def _random_layer(self, row: TrainingRow) -> str | None:
        """Name a layer that makes two equal forward passes differ, tried on a few tokens."""
        ids = (row.prompt_ids + row.response_ids)[:_PROBE_TOKENS]
        with self.fabric.autocast():
            found = layer_drawing_in_evaluation(self.policy, ids, self.fabric.device)
        reshard(self.policy)
        return found


@dataclass(slots=True)
class PolicyTotals:
    """Minibatches of the agents that share a policy.

    Attributes:
        stale: Agents of whom older weights sampled any row.
        recomputed: Whether old log-probs are the trainer's own.
        agents: What was counted by agent.
    """

    stale: Collection[str]
    recomputed: bool
    agents: defaultdict[str, AgentTotals] = field(default_factory=lambda: defaultdict(AgentTotals))

    def add(self, steps: Mapping[str, PartStep], *, stepped: bool) -> None:
        """Count in a minibatch."""
        for name, step in steps.items():
            self.agents[name].add(step, stepped=stepped)

    def write(self, report: UpdateReport, means: Mapping[str, float]) -> None:
        """Write the metrics of the worker group and of its agents."""
        report.metrics = dict(means)
        report.agents = {
            name: totals.result(stale=name in self.stale, recomputed=self.recomputed)
            for name, totals in self.agents.items()
        }


@dataclass(slots=True, kw_only=True)
class ValueLoss(UpdateLoss[ValueRow, ValueBatch]):
    """The clipped value loss of a critic, averaged over all tokens of its agents.

    Attributes:
        critic: The critic as Fabric has wrapped it.
        clip: How far a value may move from that before the update until its token's gradient is cut; None for no bound.
        pad_id: Padding id.
        budget: Largest number of tokens computed at once.
    """

    critic: nn.Module
    clip: float | None
    pad_id: int
    budget: int

    def start_totals(self, rows: Sequence[ValueRow]) -> ValueTotals:
        """Return what counts the minibatches of rows with these values and returns."""
        return ValueTotals(rows)

    def micro_batches(self, minibatch: Sequence[ValueRow], *, stepped: bool) -> dict[str, list[ValueBatch]]:
        """Cut the rows of all agents into micro-batches."""
        rows = [line.row for line in minibatch]
        tokens = sum(len(row.response_ids) for row in rows)
        chunks = chunk_rows(self.critic, rows, self.budget)
        return {
            "value": [
                collate_values([minibatch[index] for index in chunk], pad_id=self.pad_id, denominator=tokens)
                for chunk in chunks
            ]
        }

    def compute(self, part: str, batch: ValueBatch) -> dict[str, Tensor]:
        """Return the loss, the number of tokens and how many of them were clipped."""
        tokens = batch.tokens
        assert tokens.denominator is not None, "a minibatch is divided as a whole"
        found = clipped_value_loss(
            response_values(self.critic, tokens),
            batch.values,
            batch.returns,
            tokens.response_mask,
            denominator=tokens.denominator,
            clip=self.clip,
        )
        return {"loss": found.loss, "clipped": found.clipped, "tokens": tokens.response_mask.sum()}

    def masked(self, batch: ValueBatch) -> ValueBatch:
        """Return a batch that contributes nothing."""
        tokens = masked_like(batch.tokens)
        nothing = torch.zeros(tokens.response_mask.shape)
        return ValueBatch(tokens, nothing, nothing)


class ValueTotals:
    """Minibatches of a critic.

    Args:
        rows: Rows of the iteration.
    """

    def __init__(self, rows: Sequence[ValueRow]) -> None:
        self._explained = float(explained_variance(_column(rows, "values"), _column(rows, "returns")))
        self._tokens = Means()

    def add(self, steps: Mapping[str, PartStep], *, stepped: bool) -> None:
        """Count in a minibatch."""
        for step in steps.values():
            tokens = float(step.sums["tokens"])
            clipped = float(step.sums["clipped"]) / tokens
            self._tokens.add({"value_loss": step.loss, "clipped": clipped}, weight=tokens)

    def write(self, report: UpdateReport, means: Mapping[str, float]) -> None:
        """Write loss and share of clipped values over tokens, and how well the values before the update explained the returns."""
        steps = {name: means[name] for name in ("grad_norm", "lr") if name in means}
        report.metrics = {**self._tokens.result(), **steps}
        if math.isfinite(self._explained):
            report.metrics["explained_variance"] = self._explained


def _column(rows: Sequence[ValueRow], name: str) -> Tensor:
    """Lay the numbers of all rows' tokens one behind the other."""
    numbers: list[Any] = [number for row in rows for number in getattr(row, name)]
    return torch.tensor(numbers, dtype=torch.float64)
