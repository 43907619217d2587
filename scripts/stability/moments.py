"""Measure what λ predicts: how an advantage changes the second moment of an agent's gradient.

Place in the data flow: the estimator has turned a :class:`~drmas_pl.algorithms.turn_batch.TurnBatch` into advantages, and the policies
are those that sampled it. Each turn then has a squared score-function norm ``g = ‖∇ log π(response | prompt)‖²``, whatever its advantage.

Legend: N rows, A advantage, g squared norm. ``mean(A²·g)/mean(g) = mean(A²) + cov(A², g)/mean(g)``, and ``mean(A²) = λ``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drmas_pl.agent import Agent
from drmas_pl.algorithms.estimators import AdvantageEstimator, GroupNormalizer, Scopes
from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.functional.diagnostics import amplification, has_signal
from drmas_pl.kernels.policy_logprobs import response_logprobs

NORMALIZERS: dict[str, GroupNormalizer] = {
    "grpo_turn": GroupNormalizer(mean_scope=("task",), std_scope=("task",)),
    "dr_mas_mean": GroupNormalizer(mean_scope=("task", "agent"), std_scope=("task",)),
    "dr_mas_std": GroupNormalizer(mean_scope=("task",), std_scope=("task", "agent")),
    "dr_mas": GroupNormalizer(mean_scope=("task", "agent"), std_scope=("task", "agent")),
}
SYMBOLS = {"grpo_turn": "(μ, σ)", "dr_mas_mean": "(μ_k, σ)", "dr_mas_std": "(μ, σ_k)", "dr_mas": "(μ_k, σ_k)"}


@dataclass(frozen=True, slots=True)
class Moments:
    """One agent's gradient second moment over its rows that carry signal.

    Attributes:
        rows: Number of those rows.
        predicted: λ_k, from rewards alone.
        square: Mean A² of the advantages that were used; λ_k but for ``ddof`` and ``eps``.
        measured: ``mean(A²·g)/mean(g)``.
    """

    rows: int
    predicted: float
    square: float
    measured: float

    @property
    def covariance(self) -> float:
        """``cov(A², g)/mean(g)``: what λ leaves out."""
        return self.measured - self.square


def score_norms(table: TurnBatch, agents: Mapping[str, Agent]) -> Tensor:
    """Compute every turn's squared score-function norm under its agent's present weights.

    Args:
        table: N turns.
        agents: Agents by name, bound to the policies that sampled the turns.

    Returns:
        (N,) float64; turns with equal prompt and response are computed once.
    """
    known: dict[tuple[str, tuple[int, ...], tuple[int, ...]], float] = {}
    norms = []
    for turn in table.turns:
        key = (turn.agent, turn.prompt_ids, turn.response_ids)
        if key not in known:
            row = TrainingRow(turn.agent, turn.prompt_ids, turn.response_ids, turn.logprobs, advantage=0.0)
            known[key] = _score_norm(agents[turn.agent], row)
        norms.append(known[key])
    return torch.tensor(norms, dtype=torch.float64)


def measure(
    table: TurnBatch, advantage: Tensor, norms: Tensor, *, normalizer: GroupNormalizer
) -> dict[str, Moments]:
    """Compare λ_k with the measured ratio of second moments, agent by agent.

    Args:
        table: N turns.
        advantage: (N,) advantages that ``normalizer`` gave them.
        norms: (N,) squared score-function norms.
        normalizer: Its scopes are the ones λ_k is computed for.

    Returns:
        Moments by agent; agents without a row that carries signal are left out.
    """
    assert normalizer.std_scope is not None
    mean_group, std_group = table.scope(normalizer.mean_scope), table.scope(normalizer.std_scope)
    predicted = amplification(table.score, table.agent, mean_group, std_group, num_agents=len(table.names))
    signal = has_signal(table.score, mean_group) & has_signal(table.score, std_group)
    square = advantage.to(torch.float64).square()
    found = {}
    for index, name in enumerate(table.names):
        own = signal & (table.agent == index)
        if own.any():
            measured = (square * norms)[own].mean() / norms[own].mean()
            found[name] = Moments(
                int(own.sum()), float(predicted[index]), float(square[own].mean()), float(measured)
            )
    return found


@dataclass
class Probe(AdvantageEstimator):
    """A normaliser that measures second moments at some of its calls, with the weights the advantages are meant for.

    Attributes:
        normalizer: Gives the advantages.
        agents: Agents by name; bound to their policies before the first call.
        every: Calls from one measurement to the next.
        found: Number of the call and moments by agent, oldest first.
    """

    normalizer: GroupNormalizer
    agents: Mapping[str, Agent]
    every: int
    found: list[tuple[int, dict[str, Moments]]] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1 call, got {self.every}")

    @property
    def scopes(self) -> Scopes:
        """Return which rows the normaliser compares."""
        return self.normalizer.scopes

    def __call__(self, table: TurnBatch) -> Tensor:
        """Return the normaliser's advantages."""
        advantage = self.normalizer(table)
        if self.calls % self.every == 0 and len(table):
            self.found.append(
                (
                    self.calls,
                    measure(table, advantage, score_norms(table, self.agents), normalizer=self.normalizer),
                )
            )
        self.calls += 1
        return advantage


def _score_norm(agent: Agent, row: TrainingRow) -> float:
    """Return ‖∇ log π‖² of one row over all trained weights."""
    assert agent.policy is not None
    batch = collate([row], pad_id=agent.tokenizer.pad_token_id, denominator=1.0)
    logp = response_logprobs(agent.policy, batch, temperature=agent.temperature).logp.sum()
    gradient = torch.autograd.grad(logp, [p for p in agent.policy.parameters() if p.requires_grad])
    return float(sum(part.to(torch.float64).square().sum() for part in gradient))
