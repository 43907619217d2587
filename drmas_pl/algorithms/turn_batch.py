"""Turns of a collection as columns, the form in which groups and advantages are computed.

Legend: N rows, one per turn; turns of failed trajectories never become rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_range
from drmas_pl.functional.credit import mix_rewards
from drmas_pl.functional.grouping import encode, group_ids
from drmas_pl.types import Trajectory, Turn


class TurnScorer(Protocol):
    """What a batch asks an agent about each of its turns."""

    def trains_on(self, turn: Turn) -> bool:
        """Tell whether the agent learns from the turn."""

    def score(self, turn: Turn, credit: float) -> float:
        """Return the turn's score: its credit less the agent's penalties."""


Scope = Literal["task", "agent", "turn", "state", "node", "data_source", "batch"]
TokenValues = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TurnBatch:
    """Columns over N turns.

    Attributes:
        turns: The turns themselves.
        names: Agent names; ``agent`` indexes them.
        tasks: Task id of each row.
        sources: Data source of each row, by name.
        credit: (N,) float64 what the rule credits the turn with; NaN for turns that are not trained, which no statistic counts.
        penalty: (N,) float64 what is taken off it: for a turn that cannot be used, and for the KL divergence in the reward.
        reward: (N,) float64 team reward that the environment paid on the turn.
        local: (N,) float64 local reward of the turn.
        own_reward: (N,) float64 what the environment paid the turn's agent alone, from the turn until the agent's next one.
        team: (N,) float64 team reward of the whole trajectory; of a candidate, what the team was paid where it was tried.
        own: (N,) float64 what the environment paid the turn's agent alone in the whole trajectory; of a candidate, where it was tried.
        by_agent: (N,) bool, whether the environment paid single agents in the trajectory.
        success: (N,) bool, whether the trajectory solved its task.
        task: (N,) int64.
        trajectory: (N,) int64; a candidate is a trajectory of its own, of one turn.
        agent: (N,) int64.
        index: (N,) int64, position among all turns of the trajectory.
        move: (N,) int64, position of the turn's move among all moves of the trajectory; agents that moved at once share it.
        turn: (N,) int64, position among the agent's own turns.
        step: (N,) int64, environment steps before the turn.
        state: (N,) int64, equal for equal prompts.
        node: (N,) int64, equal for the candidates for one turn of a trajectory, and for all turns that were sampled alone.
        data_source: (N,) int64.
        rule: The credit rule, for estimators that score a turn by another reward than the trajectory's.
        values: A critic's value of each sampled token, row by row, none for rows without a critic; None without critics.
    """

    turns: tuple[Turn, ...]
    names: tuple[str, ...]
    tasks: tuple[str, ...]
    sources: tuple[str, ...]
    credit: Tensor
    penalty: Tensor
    reward: Tensor
    local: Tensor
    own_reward: Tensor
    team: Tensor
    own: Tensor
    by_agent: Tensor
    success: Tensor
    task: Tensor
    trajectory: Tensor
    agent: Tensor
    index: Tensor
    move: Tensor
    turn: Tensor
    step: Tensor
    state: Tensor
    node: Tensor
    data_source: Tensor
    rule: CreditRule
    values: tuple[TokenValues, ...] | None = None

    def __len__(self) -> int:
        return len(self.turns)

    @property
    def score(self) -> Tensor:
        """(N,) float64, what statistics compare: credit minus penalty."""
        return self.credit - self.penalty

    @property
    def trained(self) -> Tensor:
        """(N,) bool, True on rows that enter statistics and loss."""
        return self.score.isfinite()

    @property
    def earned(self) -> Tensor:
        """(N,) float64, what the trajectory earned the turn's agent: the team reward and what the agent alone was paid."""
        return self.team + self.own

    def credited(self, team: Tensor, own: Tensor | None = None) -> Tensor:
        """Return (N,) float64: the turns' credit if their trajectory had earned ``team`` (N,) and their agent alone ``own`` (N,).

        By default agents had earned alone what they did. NaN for turns that are not trained. Rules that follow the rewards of single turns
        instead of the trajectory's give the same whatever was earned.
        """
        earned = replace(self, team=team, own=self.own if own is None else own)
        credit = self.rule(earned).to(torch.float64)
        return torch.where(self.trained, credit, float("nan"))

    def scope(self, names: Sequence[Scope]) -> Tensor:
        """Return (N,) group ids of rows that agree in every named column; ``batch`` alone is one group of all rows.

        Raises:
            ValueError: A name is unknown.
        """
        check_scope(names)
        columns = [getattr(self, name) for name in names if name != "batch"]
        return group_ids(*columns) if columns else torch.zeros_like(self.task)

    def take(self, rows: Tensor) -> TurnBatch:
        """Return the batch of the rows numbered ``rows`` (M,), in that order; a row may come more than once."""
        places = rows.tolist()
        picked: dict[str, Any] = {}
        for item in fields(self):
            column = getattr(self, item.name)
            if isinstance(column, Tensor):
                picked[item.name] = column[rows]
            elif isinstance(column, tuple) and item.name != "names":
                picked[item.name] = tuple(column[place] for place in places)
        return replace(self, **picked)


def check_scope(names: Sequence[str]) -> None:
    """Raise ValueError unless ``names`` is a list of one or more column names."""
    if isinstance(names, str) or not names or any(name not in get_args(Scope) for name in names):
        raise ValueError(
            f"a scope needs a list of names out of {list(get_args(Scope))}, got {names!r}; write [task, agent] for example"
        )


class CreditRule(Protocol):
    """Anything that credits each turn of a batch with a number."""

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float64."""
        ...


@dataclass(frozen=True, slots=True)
class TeamReward:
    """The trajectory's reward to every turn, plus its agent's own reward and the turn's local one: ``α·team + own + local``.

    Attributes:
        alpha: α, at least 0.
        alpha_by_agent: α of single agents by name, in place of ``alpha``.
    """

    alpha: float = 1.0
    alpha_by_agent: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_range("alpha", self.alpha, low=0.0)
        for agent, alpha in self.alpha_by_agent.items():
            check_range(f"alpha_by_agent.{agent}", alpha, low=0.0)

    @property
    def named_agents(self) -> Sequence[str]:
        """Return the agents with an α of their own; the team must have them."""
        return tuple(self.alpha_by_agent)

    def __call__(self, batch: TurnBatch) -> Tensor:
        """Return (N,) float64."""
        own = batch.own + batch.local
        if not self.alpha_by_agent:
            return mix_rewards(batch.team, own, alpha=self.alpha)
        alphas = torch.tensor(
            [self.alpha_by_agent.get(name, self.alpha) for name in batch.names], dtype=torch.float64
        )
        return mix_rewards(alphas[batch.agent] * batch.team, own)


def build_turn_batch(
    trajectories: Sequence[Trajectory], agents: Mapping[str, TurnScorer], *, credit: CreditRule | None = None
) -> TurnBatch:
    """Lay out every turn of every trajectory that did not fail, all candidates in place of those that were chosen.

    Args:
        trajectories: What was collected.
        agents: Agents by name; they turn what a turn is credited with into its score.
        credit: What each turn is credited with; by default the team's reward, its agent's own and its local one.
    """
    used = [
        (turn, trajectory)
        for trajectory in trajectories
        if not trajectory.failed
        for turn in trajectory.sampled
    ]
    names = tuple(sorted(agents))
    place = {name: position for position, name in enumerate(names)}
    tasks = tuple(trajectory.task.id for _, trajectory in used)
    sources = tuple(trajectory.task.data_source for _, trajectory in used)
    batch = TurnBatch(
        turns=tuple(turn for turn, _ in used),
        names=names,
        tasks=tasks,
        sources=sources,
        credit=torch.zeros(len(used), dtype=torch.float64),
        penalty=torch.zeros(len(used), dtype=torch.float64),
        reward=torch.tensor([turn.reward for turn, _ in used], dtype=torch.float64),
        local=torch.tensor([turn.local_reward for turn, _ in used], dtype=torch.float64),
        own_reward=torch.tensor([turn.own_reward for turn, _ in used], dtype=torch.float64),
        team=torch.tensor(
            [trajectory.reward if turn.candidate is None else turn.reward for turn, trajectory in used],
            dtype=torch.float64,
        ),
        own=torch.tensor(
            [
                trajectory.rewards.get(turn.agent, 0.0) if turn.candidate is None else turn.own_reward
                for turn, trajectory in used
            ],
            dtype=torch.float64,
        ),
        by_agent=torch.tensor([bool(trajectory.rewards) for _, trajectory in used], dtype=torch.bool),
        success=torch.tensor([trajectory.success for _, trajectory in used], dtype=torch.bool),
        task=encode(tasks),
        trajectory=encode(
            [
                (trajectory.task.id, trajectory.sample, *_node(turn), turn.candidate)
                for turn, trajectory in used
            ]
        ),
        agent=torch.tensor([place[turn.agent] for turn, _ in used], dtype=torch.int64),
        index=torch.tensor([turn.index for turn, _ in used], dtype=torch.int64),
        move=torch.tensor(
            [turn.index if turn.move is None else turn.move for turn, _ in used], dtype=torch.int64
        ),
        turn=torch.tensor([turn.agent_index for turn, _ in used], dtype=torch.int64),
        step=torch.tensor([turn.step for turn, _ in used], dtype=torch.int64),
        state=encode([turn.prompt_hash for turn, _ in used]),
        node=encode(
            [
                () if turn.candidate is None else (trajectory.task.id, trajectory.sample, *_node(turn))
                for turn, trajectory in used
            ]
        ),
        data_source=encode(sources),
        rule=credit or TeamReward(),
    )
    return _credit(batch, agents)


def _node(turn: Turn) -> tuple[int | None, ...]:
    """Return where in its trajectory a candidate was sampled; nothing for a turn that was sampled alone."""
    return () if turn.candidate is None else (turn.index, turn.parent)


def _credit(batch: TurnBatch, agents: Mapping[str, TurnScorer]) -> TurnBatch:
    """Fill in credit and penalties."""
    credit = []
    penalty = []
    for turn, gained in zip(batch.turns, batch.rule(batch).tolist(), strict=True):
        agent = agents[turn.agent]
        credit.append(gained if agent.trains_on(turn) else float("nan"))
        penalty.append(gained - agent.score(turn, gained))
    return replace(
        batch,
        credit=torch.tensor(credit, dtype=torch.float64),
        penalty=torch.tensor(penalty, dtype=torch.float64),
    )
