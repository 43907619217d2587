"""Any AEC or parallel environment of PettingZoo as a text environment of several players.

Place in the data flow: observations are written out for the player whose turn it is, and what it says is read as an action of its space.
Needs the ``pettingzoo`` extra.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium.spaces import Discrete

from drmas_pl.errors import ConfigError
from drmas_pl.integrations import spaces
from drmas_pl.integrations.players import OnIllegal, PlayerOptions, PlayersEnv, ScriptedPlayer
from drmas_pl.types import Task
from drmas_pl.utils.named_function import import_function

MASK = "action_mask"
OBSERVATION = "observation"


class PettingZooEnv(PlayersEnv):
    """Plays a PettingZoo environment; its agents are the players.

    Every sample of a task starts from the same state, since ``reset`` gets the seed of the task. A mask, in an observation's
    ``action_mask`` or in the agent's info, says which numbers of a ``Discrete`` space are possible; these are listed with every
    observation. Subclasses may override :meth:`observation_to_text` and :meth:`text_to_action` instead of giving functions.

    Args:
        make: A function that makes the environment, or its name as ``package.module:function``.
        arguments: Keyword arguments of that function.
        player_names: What the players are called, in the order of the environment's ``possible_agents``; None keeps its names.
        render: Show what the environment renders in its mode ``ansi`` instead of observations; not for games with secrets.
        tasks: Start states; None takes ``episodes`` of them.
        episodes: Number of start states, one for each seed from 0.
        observation_to_text: A function of player and observation, without its mask, that describes it. By default text stays as it is;
            numbers, arrays of at most 2048 numbers, and dictionaries and tuples of these are written out.
        text_to_action: A function of player and text that returns an action; raises ValueError for text that names none. By default text
            stays as it is, and actions of ``Discrete``, ``MultiDiscrete`` and ``MultiBinary`` spaces are their numbers.
        action_names: What the numbers of ``Discrete`` spaces are called.
        show_actions: Whether what a player sees ends with the actions that are possible.
        opponents: Scripted players by name: ``random``, or a function of what the player sees that returns what it says.
        instructions: What the first observation begins with, such as the rules.
        on_illegal: What text that names no possible action leads to: ``continue`` tells its author so and costs a turn; ``end`` ends the
            episode; ``random`` plays a possible action. Players who move at once all move again under ``continue``.
        illegal_reward: What the author of such text is paid.
        success_player: Whose rewards say whether an episode is a success; the first player that is not scripted by default.
        success_reward: Least sum of that player's rewards in a successful episode.
        max_turns: Turns after which an episode is truncated.

    Raises:
        ConfigError: PettingZoo is missing, ``make`` cannot be imported or makes something else, or a space has no text form.
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        make: str | Callable[..., Any],
        *,
        arguments: Mapping[str, Any] | None = None,
        player_names: Sequence[str] | None = None,
        render: bool = False,
        tasks: Sequence[Task] | None = None,
        episodes: int = 32,
        observation_to_text: Callable[[str, Any], str] | None = None,
        text_to_action: Callable[[str, str], Any] | None = None,
        action_names: Sequence[str] = (),
        show_actions: bool = True,
        opponents: Mapping[str, str | ScriptedPlayer] | None = None,
        instructions: str = "",
        on_illegal: OnIllegal = "end",
        illegal_reward: float = -1.0,
        success_player: str | None = None,
        success_reward: float = 1.0,
        max_turns: int = 200,
    ) -> None:
        options = PlayerOptions(
            opponents or {},
            instructions,
            on_illegal,
            illegal_reward,
            success_player,
            success_reward,
            max_turns,
        )
        super().__init__(options, tasks=tasks, episodes=episodes)
        self.rendered = render
        self.game = make_game(make, {**({"render_mode": "ansi"} if render else {}), **(arguments or {})})
        self.action_names = tuple(action_names)
        self.show_actions = show_actions
        self._describe = observation_to_text
        self._read = text_to_action
        self.game.rename(player_names)
        self.use_players(tuple(self.game.names))
        for player in self.all_players:
            self._check_spaces(player)

    def start(self, task: Task, seed: int) -> None:
        """Reset the game with the seed of the task."""
        self.game.begin(seed)

    def moving(self) -> tuple[str, ...]:
        """Return who moves now."""
        return self.game.moving()

    def was_cut(self) -> bool:
        """Tell whether the game was truncated."""
        return self.game.cut

    def describe(self, player: str) -> str:
        """Say who the player is, what it sees, and what it can do."""
        observation = self.game.observe(player)
        if isinstance(observation, Mapping):
            observation = {name: value for name, value in observation.items() if name != MASK}
            if set(observation) == {OBSERVATION}:
                observation = observation[OBSERVATION]
        parts = [f"You are {player}.", self.observation_to_text(player, observation)]
        if self.show_actions and self._read is None:
            space = self.game.action_space(player)
            parts.append(spaces.describe_actions(space, names=self.action_names, legal=self._legal(player)))
        return "\n".join(part for part in parts if part)

    def observation_to_text(self, player: str, observation: Any) -> str:
        """Describe an observation."""
        if self._describe is not None:
            return self._describe(player, observation)
        if self.rendered:
            return spaces.render_as_text(str(self.game.env.render()))
        text: str = spaces.write(observation)
        return text

    def text_to_action(self, player: str, text: str) -> Any:
        """Return the action that a text names.

        Raises:
            ValueError: It names none that is possible.
        """
        if self._read is not None:
            return self._read(player, text)
        return spaces.read(
            text, self.game.action_space(player), names=self.action_names, legal=self._legal(player)
        )

    def read(self, player: str, text: str) -> Any:
        """Return the action that a text names."""
        return self.text_to_action(player, text)

    def draw(self, player: str) -> Any:
        """Return a possible action at random."""
        space = self.game.action_space(player)
        legal = self._legal(player)
        if legal:
            return legal[int(self.np_random.integers(len(legal)))]
        space.seed(int(self.np_random.integers(1 << 31)))
        return space.sample()

    def advance(self, actions: Mapping[str, Any]) -> Mapping[str, float]:
        """Step the game and return the rewards of all its agents."""
        return self.game.advance(actions)

    def _legal(self, player: str) -> tuple[int, ...] | None:
        return spaces.legal_actions(self.game.mask(player), self.game.action_space(player))

    def _check_spaces(self, player: str) -> None:
        """Refuse spaces that have no text form, unless there is a function or a method of a subclass for them."""
        kinds = (
            (
                "observation_to_text",
                self._describe,
                self.game.observation_space(player),
                spaces.can_write,
            ),
            ("text_to_action", self._read, self.game.action_space(player), spaces.can_read),
        )
        for word, function, space, known in kinds:
            overridden = getattr(type(self), word) is not getattr(PettingZooEnv, word)
            shown = word == "observation_to_text" and self.rendered
            if function is None and not (overridden or shown or known(space)):
                raise ConfigError(
                    f"the space {space} of {player} has no text form; give a function: env.{word}._target_=my_module.function"
                )
        space = self.game.action_space(player)
        if self.action_names and not (isinstance(space, Discrete) and len(self.action_names) == space.n):
            raise ValueError(
                f"action_names must hold one name for each action of {player}, {space}, got {len(self.action_names)} names"
            )


class _Game(ABC):
    """A PettingZoo environment that is played one move after the other.

    Many of them are copied without their state, as ``EzPickle`` does; so a copy is reset with the same seed and plays the same moves.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.cut = False
        self.names: dict[str, str] = {name: name for name in env.possible_agents}
        self.seed: int | None = None
        self.played: list[Mapping[str, Any]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> _Game:
        twin = type(self)(copy.deepcopy(self.env, memo))
        memo[id(self)] = twin
        twin.names = dict(self.names)
        if self.seed is not None:
            twin.begin(self.seed)
        for actions in self.played:
            twin.advance(actions)
        return twin

    def rename(self, names: Sequence[str] | None) -> None:
        """Call the players otherwise, in the order of the environment's agents.

        Raises:
            ValueError: These are not as many different names.
        """
        agents = list(self.env.possible_agents)
        if names is None:
            return
        if len(names) != len(agents) or len(set(names)) != len(agents):
            raise ValueError(
                f"player_names must be {len(agents)} different names for {agents}, got {list(names)}"
            )
        self.names = dict(zip(names, agents, strict=True))

    def action_space(self, player: str) -> Any:
        """Return the space of a player's actions."""
        return self.env.action_space(self.names[player])

    def observation_space(self, player: str) -> Any:
        """Return the space of what a player sees."""
        return self.env.observation_space(self.names[player])

    def begin(self, seed: int) -> None:
        """Start an episode."""
        self.seed = seed
        self.played = []
        self.cut = False
        self._reset(seed)

    def advance(self, actions: Mapping[str, Any]) -> dict[str, float]:
        """Play a move of everybody who moves now, and return the rewards."""
        self.played.append(dict(actions))
        rewards = self._step({self.names[player]: action for player, action in actions.items()})
        return {player: float(rewards[agent]) for player, agent in self.names.items() if agent in rewards}

    def moving(self) -> tuple[str, ...]:
        """Return who moves now."""
        movers = self._movers()
        return tuple(player for player, agent in self.names.items() if agent in movers)

    def observe(self, player: str) -> Any:
        """Return what a player sees."""
        return self._observation(self.names[player])

    def mask(self, player: str) -> Any:
        """Return the mask of a player's actions, or None."""
        observation = self.observe(player)
        found = observation.get(MASK) if isinstance(observation, Mapping) else None
        return self._info(self.names[player]).get(MASK) if found is None else found

    @abstractmethod
    def _reset(self, seed: int) -> None: ...

    @abstractmethod
    def _step(self, actions: Mapping[str, Any]) -> Mapping[str, Any]: ...

    @abstractmethod
    def _movers(self) -> Sequence[str]: ...

    @abstractmethod
    def _observation(self, agent: str) -> Any: ...

    @abstractmethod
    def _info(self, agent: str) -> Mapping[str, Any]: ...


class _TurnGame(_Game):
    """An AEC environment: one agent moves at a time."""

    def _movers(self) -> Sequence[str]:
        return (self.env.agent_selection,) if self.env.agents else ()

    def _observation(self, agent: str) -> Any:
        return self.env.observe(agent)

    def _info(self, agent: str) -> Mapping[str, Any]:
        return self.env.infos.get(agent) or {}

    def _reset(self, seed: int) -> None:
        self.env.reset(seed=seed)
        self._skip_ended()

    def _step(self, actions: Mapping[str, Any]) -> Mapping[str, Any]:
        ((_, action),) = actions.items()
        self.env.step(action)
        rewards = dict(self.env.rewards)
        self.cut = any(self.env.truncations.values()) and not any(self.env.terminations.values())
        self._skip_ended()
        return rewards

    def _skip_ended(self) -> None:
        """Take agents whose episode is over out of the game, as PettingZoo asks for."""
        while self.env.agents:
            name = self.env.agent_selection
            if not (self.env.terminations[name] or self.env.truncations[name]):
                return
            self.env.step(None)


class _JointGame(_Game):
    """A parallel environment: all agents that are there move at once."""

    observations: Mapping[str, Any]
    infos: Mapping[str, Any]

    def _movers(self) -> Sequence[str]:
        return tuple(self.env.agents)

    def _observation(self, agent: str) -> Any:
        return self.observations[agent]

    def _info(self, agent: str) -> Mapping[str, Any]:
        return self.infos.get(agent) or {}

    def _reset(self, seed: int) -> None:
        self.observations, self.infos = self.env.reset(seed=seed)

    def _step(self, actions: Mapping[str, Any]) -> Mapping[str, Any]:
        self.observations, rewards, ended, cut, self.infos = self.env.step(dict(actions))
        self.cut = any(cut.values()) and not any(ended.values())
        found: Mapping[str, Any] = rewards
        return found


def make_game(make: str | Callable[..., Any], arguments: Mapping[str, Any]) -> _Game:
    """Make a game that can be played one move after the other, whichever of PettingZoo's interfaces it has.

    Raises:
        ConfigError: PettingZoo is missing, ``make`` cannot be imported, or it fails or makes something else.
    """
    try:
        from pettingzoo import AECEnv, ParallelEnv
    except ImportError as error:
        raise ConfigError("env=pettingzoo needs PettingZoo; install drmas_pl[pettingzoo]") from error
    function = import_function(make, "make") if isinstance(make, str) else make
    try:
        env = function(**arguments)
    except Exception as error:  # whatever a function of somebody else's raises
        raise ConfigError(f"{make} failed with {type(error).__name__}: {error}") from error
    if isinstance(env, AECEnv):
        return _TurnGame(env)
    if isinstance(env, ParallelEnv):
        return _JointGame(env)
    raise ConfigError(
        f"{make} must make a PettingZoo environment, AECEnv or ParallelEnv, got {type(env).__name__}"
    )
