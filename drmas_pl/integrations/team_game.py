"""A team as an environment of PettingZoo, for whatever plays or tests those.

Place in the data flow: the other way round than the adapters of environments. Each agent of the team is an agent of PettingZoo's AEC
interface whose observations and actions are text. Needs the ``pettingzoo`` extra.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gymnasium.spaces import Dict

from drmas_pl.env import FreeText
from drmas_pl.errors import ConfigError
from drmas_pl.types import Observation

Describe = Callable[[str, Observation], str]


def as_aec_env(
    team: Any, *, observation_to_text: Describe | None = None, is_parallelizable: bool = False
) -> Any:
    """Return a team as a ``pettingzoo.AECEnv``.

    An agent's observation is a dictionary whose ``text`` holds the question and the messages that it may see; PettingZoo's own tests take
    values that are no arrays in dictionaries alone. Its action is what it says, before any grammar. What the environment pays the team
    goes to every agent, and what it pays an agent, or an utterance, to that agent alone. Agents that move at once
    speak one after the other and see nothing of each other's words before all have spoken. ``reset(options={"task": task})`` chooses the
    task.

    Args:
        team: A :class:`~drmas_pl.team.Team`; a clone of it plays.
        observation_to_text: A function of an agent's name and its observation.
        is_parallelizable: Say that all agents move in every step, so that PettingZoo may play it as a parallel environment.

    Raises:
        ConfigError: PettingZoo is missing.
    """
    return _aec_class()(team, observation_to_text or describe_observation, is_parallelizable)


def describe_observation(agent: str, observation: Observation) -> str:
    """Write an observation as the question and a line for each message.

    >>> from drmas_pl.types import Message
    >>> describe_observation("b", Observation("1 + 1 =", (Message("a", "solution", "2"),)))
    '1 + 1 =\\na: 2'
    """
    lines = [f"{message.author}: {message.text}" for message in observation.history]
    return "\n".join([observation.question, *lines])


@functools.cache
def _aec_class() -> Any:
    """Derive the class when PettingZoo is needed, which is optional."""
    try:
        from pettingzoo import AECEnv
    except ImportError as error:
        raise ConfigError("as_aec_env needs PettingZoo; install drmas_pl[pettingzoo]") from error
    return type("TeamAECEnv", (TeamGame, AECEnv), {"__module__": __name__, "__doc__": TeamGame.__doc__})


class TeamGame:
    """A team, seen through PettingZoo's AEC interface; :func:`as_aec_env` makes one."""

    metadata: dict[str, Any]

    def __init__(self, team: Any, describe: Describe, is_parallelizable: bool) -> None:
        self.metadata = {
            "name": "drmas_pl_team",
            "is_parallelizable": is_parallelizable,
            "render_modes": [],
        }
        self.team = team.clone()
        self.possible_agents = list(team.possible_agents)
        self.render_mode = None
        self._describe = describe
        self._spaces = {name: Dict({"text": FreeText()}) for name in self.possible_agents}
        self._action_spaces = {name: FreeText() for name in self.possible_agents}
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Dict:
        """Return the space of an agent's observations: any text under the name ``text``."""
        return self._spaces[agent]

    def action_space(self, agent: str) -> FreeText:
        """Return the space of what an agent may say: any text."""
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode; without a task in ``options`` the environment draws one of its own."""
        self.team.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in self.agents}
        self.agent_selection = self.team.agent_selection

    def observe(self, agent: str) -> dict[str, str]:
        """Return what an agent sees now."""
        return {"text": self._describe(agent, self.team.observe(agent))}

    def step(self, action: str | None) -> None:
        """Let the agent whose turn it is say something; an agent whose episode is over takes leave with None."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._leave(agent, action)
            return
        self._cumulative_rewards[agent] = 0.0
        _, reward, terminated, truncated, info = self.team.step(action)
        self.rewards = {
            name: reward + info["rewards"].get(name, 0.0) + info["local_rewards"].get(name, 0.0)
            for name in self.agents
        }
        for name, paid in self.rewards.items():
            self._cumulative_rewards[name] += paid
        if terminated or truncated:
            over = {"success": info["success"], "metrics": info["metrics"]}
            self.terminations = dict.fromkeys(self.agents, terminated)
            self.truncations = dict.fromkeys(self.agents, truncated)
            self.infos = {name: dict(over) for name in self.agents}
            self.agent_selection = self.agents[0]
        else:
            self.agent_selection = self.team.agent_selection

    def render(self) -> None:
        """Show nothing; observations are text already."""

    def close(self) -> None:
        """Close the environment inside."""
        self.team.close()

    def _leave(self, agent: str, action: str | None) -> None:
        """Take an agent out whose episode is over."""
        if action is not None:
            raise ValueError(f"the episode of {agent!r} is over, its only action is None, got {action!r}")
        self.agents.remove(agent)
        for table in (
            self.rewards,
            self._cumulative_rewards,
            self.terminations,
            self.truncations,
            self.infos,
        ):
            del table[agent]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if self.agents:
            self.agent_selection = self.agents[0]
