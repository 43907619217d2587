"""From an iteration's rows to optimizer steps: which rows, in which parts, divided by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TrainingRow

AgentWeight = Literal["token", "turn", "agent"]


def split_rows(count: int, *, updates: int, epochs: int, generator: torch.Generator) -> list[list[int]]:
    """Shuffle rows into ``updates`` minibatches of nearly equal size for every epoch.

    Args:
        count: Number of rows; there are no more minibatches than rows.
        updates: Minibatches per epoch.
        epochs: Passes over the rows.
        generator: Decides the order.

    Returns:
        Indices of each minibatch's rows.

    >>> [sorted(part) for part in split_rows(3, updates=1, epochs=2, generator=torch.Generator())]
    [[0, 1, 2], [0, 1, 2]]
    """
    parts = []
    updates = min(updates, count)
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator).tolist()
        bounds = [index * count // updates for index in range(updates + 1)]
        parts += [order[start:stop] for start, stop in pairwise(bounds)]
    return parts


def loss_divisors(
    agents: Mapping[str, Agent], minibatch: Sequence[TrainingRow], weight: AgentWeight | None = None
) -> dict[str, float]:
    """Return what each agent's loss in a minibatch is divided by; its share of the whole loss follows from it.

    Args:
        agents: Agents that share weights, by name.
        minibatch: Rows of all of them.
        weight: An agent's loss, averaged over its own rows as its objective says, counts in proportion to its tokens or turns, or as much
            as any other agent's with rows. None divides every agent's sum by the divisor of all rows together, which is ``token`` for
            ``aggregation=token-mean`` and ``turn`` for all others.

    Returns:
        Divisors by name, for agents with rows.
    """
    own = {name: [row for row in minibatch if row.agent == name] for name in agents}
    own = {name: rows for name, rows in own.items() if rows}
    if weight is None:
        return {name: _divisor(agents[name], minibatch) for name in own}
    sizes = {name: _size(rows, weight) for name, rows in own.items()}
    total = sum(sizes.values())
    return {name: _divisor(agents[name], rows) * total / sizes[name] for name, rows in own.items()}


def _divisor(agent: Agent, rows: Sequence[TrainingRow]) -> float:
    lengths, weights = _lengths(rows)
    return float(agent.objective.denominator_from_lengths(lengths, weight=weights))


def _size(rows: Sequence[TrainingRow], weight: AgentWeight) -> float:
    """How much an agent counts."""
    lengths, weights = _lengths(rows)
    sizes = {"token": (lengths * weights).sum(), "turn": weights.sum(), "agent": torch.ones(())}
    return float(sizes[weight])


def _lengths(rows: Sequence[TrainingRow]) -> tuple[Tensor, Tensor]:
    """Return sampled tokens and original rows per row."""
    return torch.tensor([len(row.response_ids) for row in rows]), torch.tensor([row.weight for row in rows])
