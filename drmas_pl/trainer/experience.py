"""From what was played to what is trained on: the stages between a collection and the update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from drmas_pl.algorithms.estimators import TokenAdvantages
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.rollout.batching import build_rows
from drmas_pl.rollout.dynamic_sampling import RolloutBatch
from drmas_pl.rollout.filtering import aligned_rows
from drmas_pl.workers.protocols import PolicyWorkerProtocol


def kept_rows(table: TurnBatch, drawn: RolloutBatch) -> TurnBatch:
    """Leave out the rows of tasks that are not trained on."""
    if drawn.kept is None:
        return table
    return table.take(
        torch.tensor([row for row, task in enumerate(table.tasks) if task in drawn.kept], dtype=torch.int64)
    )


def penalised(table: TurnBatch, groups: Iterable[PolicyWorkerProtocol]) -> TurnBatch:
    """Add the KL penalty of agents that put it into the reward to what is taken from their credit."""
    penalty, trained = table.penalty.clone(), table.trained.tolist()
    for group in groups:
        for agent in group.agents.values():
            own = [
                index for index, turn in enumerate(table.turns) if turn.agent == agent.name and trained[index]
            ]
            found = group.reward_penalties(agent, [table.turns[index] for index in own])
            penalty[own] += torch.tensor(found, dtype=penalty.dtype)
    return replace(table, penalty=penalty)


def training_rows(
    table: TurnBatch, advantage: Tensor | TokenAdvantages, *, align_turns: Mapping[str, int], seed: int
) -> dict[str, list[TrainingRow]]:
    """Build the rows that each agent trains on.

    Args:
        table: N turns.
        advantage: Their advantages.
        align_turns: See :func:`~drmas_pl.rollout.filtering.aligned_rows`; empty keeps every row once.
        seed: Decides what alignment drops and repeats.
    """
    if align_turns:
        places = aligned_rows(table, align_turns, seed=seed)
        table, advantage = table.take(places), advantage[places]
    return build_rows(table, advantage)
