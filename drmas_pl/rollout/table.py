"""Turns of a collection as columns, the form in which groups and advantages are computed.

Legend: N rows, one per turn that enters statistics; turns of failed trajectories never do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from drmas_pl.agent import Agent
from drmas_pl.functional.grouping import encode, group_ids
from drmas_pl.types import Trajectory, Turn

Scope = Literal["task", "agent", "turn", "state", "data_source", "batch"]


@dataclass(frozen=True, slots=True)
class TurnTable:
    """Columns over N turns.

    Attributes:
        turns: The turns themselves.
        names: Agent names; ``agent`` indexes them.
        score: (N,) float64 row scores.
        task: (N,) int64.
        trajectory: (N,) int64.
        agent: (N,) int64.
        turn: (N,) int64, position among the agent's own turns.
        state: (N,) int64, equal for equal prompts.
        data_source: (N,) int64.
    """

    turns: tuple[Turn, ...]
    names: tuple[str, ...]
    score: Tensor
    task: Tensor
    trajectory: Tensor
    agent: Tensor
    turn: Tensor
    state: Tensor
    data_source: Tensor

    def __len__(self) -> int:
        return len(self.turns)

    def scope(self, names: Sequence[Scope]) -> Tensor:
        """Return (N,) group ids of rows that agree in every named column; ``batch`` alone is one group of all rows.

        Raises:
            ValueError: A name is unknown.
        """
        check_scope(names)
        columns = [getattr(self, name) for name in names if name != "batch"]
        return group_ids(*columns) if columns else torch.zeros_like(self.task)


def check_scope(names: Sequence[str]) -> None:
    """Raise ValueError unless ``names`` is a list of one or more column names."""
    if isinstance(names, str) or not names or any(name not in get_args(Scope) for name in names):
        raise ValueError(f"a scope needs a list of names out of {list(get_args(Scope))}, got {names!r}; write [task, agent] for example")


def build_table(trajectories: Sequence[Trajectory], agents: Mapping[str, Agent]) -> TurnTable:
    """Lay out every trained turn of every trajectory that did not fail.

    Args:
        trajectories: What was collected.
        agents: Agents by name; they turn the team's reward into row scores.
    """
    used = [
        (turn, trajectory)
        for trajectory in trajectories
        if not trajectory.failed
        for turn in trajectory.turns
        if agents[turn.agent].trains_on(turn)
    ]
    names = tuple(sorted(agents))
    index = {name: position for position, name in enumerate(names)}
    return TurnTable(
        turns=tuple(turn for turn, _ in used),
        names=names,
        score=torch.tensor([agents[turn.agent].score(turn, trajectory.reward) for turn, trajectory in used], dtype=torch.float64),
        task=encode([trajectory.task.id for _, trajectory in used]),
        trajectory=encode([(trajectory.task.id, trajectory.sample) for _, trajectory in used]),
        agent=torch.tensor([index[turn.agent] for turn, _ in used], dtype=torch.int64),
        turn=torch.tensor([turn.agent_index for turn, _ in used], dtype=torch.int64),
        state=encode([turn.prompt_hash for turn, _ in used]),
        data_source=encode([trajectory.task.data_source for _, trajectory in used]),
    )
