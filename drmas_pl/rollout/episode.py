"""One play of a team on a task, from what its agents say to the trajectory; knows no engine.

Whoever plays asks for the agents that move now, has each of them speak, gives their turns a place, steps the team and adds what came of it:

    while calls := episode.calls():
        turns = episode.place([...])
        episode.add(turns, team.hear(turns))
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from drmas_pl.env import Outcome
from drmas_pl.errors import EnvironmentFault
from drmas_pl.team import Call, Team
from drmas_pl.types import Mode, Task, Trajectory, Turn


class Episode:
    """Collects the turns of a trajectory.

    Args:
        team: The team that plays, just reset.
        observation: What ``reset`` returned.
        max_calls: Largest number of turns; a move that needs more than are left is not made.
    """

    def __init__(self, team: Team, observation: str, *, max_calls: int) -> None:
        self.team = team
        self.observation = observation
        self.max_calls = max_calls
        self.turns: list[Turn] = []
        self.candidates: list[Turn] = []
        self.moves = 0
        self.reward = 0.0
        self.rewards: dict[str, float] = {}
        self.terminated = False
        self.info: dict[str, Any] = {}

    def calls(self) -> tuple[Call, ...]:
        """Return what is asked now, in the order of the turns; nothing when the episode is over or too few calls are left."""
        calls = self.team.calls()
        return calls if len(self.turns) + len(calls) <= self.max_calls else ()

    def fork(self, team: Team) -> Episode:
        """Return the episode so far, to be played on with a copy of its team."""
        twin = copy.copy(self)
        twin.team = team
        twin.turns = [*self.turns]
        twin.rewards = dict(self.rewards)
        return twin

    def place(self, spoken: Sequence[Turn]) -> tuple[Turn, ...]:
        """Return what the speakers said, in their order, as turns that know their place in the trajectory."""
        names = [turn.agent for turn in spoken]
        return tuple(
            replace(
                turn,
                index=len(self.turns) + place,
                agent_index=sum(earlier.agent == turn.agent for earlier in self.turns)
                + names[:place].count(turn.agent),
                step=self.team.turn,
                move=self.moves,
                moved_with=tuple(name for name in names if name != turn.agent),
                observation=self.observation,
            )
            for place, turn in enumerate(spoken)
        )

    def add(self, turns: Sequence[Turn], outcome: Outcome) -> None:
        """Add a move and what the team made of it.

        Args:
            turns: What :meth:`place` returned.
            outcome: What the team's ``step`` returned.
        """
        told, gained, self.terminated, _, self.info = outcome
        if self.team.turn > turns[0].step:
            self.observation = told
        local_rewards = self.info["local_rewards"]
        for place, turn in enumerate(turns, 1):
            local_reward = local_rewards.get(turn.agent, 0.0)
            reward = gained if place == len(turns) else 0.0
            # most turns are paid nothing, and a copy costs more than the rest of this
            is_paid = local_reward != 0 or reward != 0
            self.turns.append(replace(turn, local_reward=local_reward, reward=reward) if is_paid else turn)
        self.reward += gained
        self.moves += 1
        for agent, paid in self.info["rewards"].items():
            self.rewards[agent] = self.rewards.get(agent, 0.0) + paid
            self._pay(agent, paid)

    def trajectory(self, task: Task, sample: int, *, mode: Mode) -> Trajectory:
        """Return what was played.

        Raises:
            EnvironmentFault: Rewards add up to what is no finite number.
        """
        total = self.reward + sum(turn.local_reward for turn in self.turns) + sum(self.rewards.values())
        if not math.isfinite(total):
            raise EnvironmentFault(f"the reward is {total}; environments must give finite numbers")
        return Trajectory(
            task,
            sample,
            tuple(self.turns),
            self.reward,
            "terminated" if self.terminated else "truncated",
            self.terminated and bool(self.info.get("success", False)),
            self.info.get("metrics", {}),
            mode=mode,
            rewards=self.rewards,
            candidates=tuple(self.candidates),
        )

    def _pay(self, agent: str, paid: float) -> None:
        """Put an agent's own reward on its latest turn; before its first one there is none."""
        for place in range(len(self.turns) - 1, -1, -1):
            turn = self.turns[place]
            if turn.agent == agent:
                self.turns[place] = replace(turn, own_reward=turn.own_reward + paid)
                return
