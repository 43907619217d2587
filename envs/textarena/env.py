"""Games of TextArena as text environments of one, two or more players.

Place in the data flow: what the game says to a player is what it sees, what it says is handed to the game as it is, and the game's rules
decide about invalid moves and rewards. Needs the ``textarena`` extra.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, ClassVar, Final

from drmas_pl.envs.textarena.optimal import OPTIMAL
from drmas_pl.errors import ConfigError
from drmas_pl.integrations.players import PlayerOptions, PlayersEnv, ScriptedPlayer
from drmas_pl.types import Task

# the games draw from the random module's only generator, whose state is lent to one of them at a time
_LOCK = RLock()
_ACTION: Final = re.compile(r"\[([^\[\]\n]{1,40})\]")
_MOST_PLAYERS: Final = 15
# some games convert whatever digits they find, of which Python takes 4300
_MOST_CHARS: Final = 4000
OPTIMAL_PLAYER: Final = "optimal"


class TextArenaEnv(PlayersEnv):
    """Plays a TextArena game, whose players are called ``player_0``, ``player_1`` and so on.

    A game draws from the ``random`` module's shared generator. Each episode has a state of its own there, seeded by its task, so that games
    that are played side by side do not disturb each other and every sample of a task starts alike.

    Args:
        id: Id of the game, such as ``TicTacToe-v0``; variants such as ``-train`` show players other texts.
        num_players: Number of players; None takes two where the game allows it, else the least number that it does.
        arguments: Further arguments of the game, such as ``{"max_rounds": 5}``.
        tasks: Start states; None takes ``episodes`` of them.
        episodes: Number of start states, one for each seed from 0.
        opponents: Scripted players by name: ``random`` takes one of the actions that the game lists in brackets, ``optimal`` never
            loses (tic-tac-toe), or a function of what the player sees that returns what it says.
        instructions: What the first observation begins with.
        success_player: Whose reward says whether an episode is a success; the first player that is not scripted by default.
        success_reward: Least reward of that player in a successful episode.
        max_turns: Turns after which an episode is truncated, beside the limits of the game.

    Raises:
        ConfigError: TextArena is missing, or cannot make the game.
        ValueError: An argument is out of its range.
    """

    scripts: ClassVar[tuple[str, ...]] = ("random", OPTIMAL_PLAYER)

    def __init__(
        self,
        id: str,
        *,
        num_players: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        tasks: Sequence[Task] | None = None,
        episodes: int = 32,
        opponents: Mapping[str, str | ScriptedPlayer] | None = None,
        instructions: str = "",
        success_player: str | None = None,
        success_reward: float = 1.0,
        max_turns: int = 200,
    ) -> None:
        # the game itself answers moves that are invalid
        options = PlayerOptions(
            opponents or {}, instructions, "continue", 0.0, success_player, success_reward, max_turns
        )
        super().__init__(options, tasks=tasks, episodes=episodes)
        self.id = id
        self.prototype = make_game(id, arguments or {})
        self.num_players = count_players(self.prototype, num_players)
        self.game: Any = None
        self.over = True
        self.generator: Any = None
        self.use_players([f"player_{number}" for number in range(self.num_players)])

    def use_players(self, names: Sequence[str]) -> None:
        """Note the names of all players, and refuse perfect play of a game that has none."""
        if OPTIMAL_PLAYER in self.options.opponents.values() and self._policy is None:
            raise ValueError(f"an optimal player exists for {', '.join(OPTIMAL)} alone, not for {self.id}")
        super().use_players(names)

    def start(self, task: Task, seed: int) -> None:
        """Set the game up with the seed of the task."""
        self.game = copy.deepcopy(self.prototype)
        self.over = False
        self.generator = random.Random(seed).getstate()
        with self._own_random():
            self.game.reset(num_players=self.num_players, seed=seed)

    def moving(self) -> tuple[str, ...]:
        """Return whose turn it is."""
        return () if self.over else (f"player_{self.game.state.current_player_id}",)

    def describe(self, player: str) -> str:
        """Return what the game says to a player whose turn it is."""
        with self._own_random():
            _, told = self.game.get_observation()
        return told if isinstance(told, str) else "\n".join(str(message[1]) for message in told)

    def read(self, player: str, text: str) -> str:
        """Return what was said, cut to a length that every game can read."""
        return text[:_MOST_CHARS]

    def advance(self, actions: Mapping[str, Any]) -> Mapping[str, float]:
        """Hand a word to the game; rewards are paid at its end."""
        ((_, text),) = actions.items()
        with self._own_random():
            self.over, _ = self.game.step(action=text)
            if not self.over:
                return {}
            rewards, _ = self.game.close()
        return {f"player_{number}": float(value) for number, value in (rewards or {}).items()}

    def scripted(self, player: str) -> Any:
        """Return what a scripted player says."""
        if self.options.opponents[player] != OPTIMAL_PLAYER:
            return super().scripted(player)
        assert self._policy is not None
        policy = self._policy(self.game.state)
        actions = list(policy)
        return actions[int(self.np_random.choice(len(actions), p=list(policy.values())))]

    def draw(self, player: str) -> str:
        """Return one of the actions that the game lists."""
        actions = listed_actions(self.describe(player))
        return actions[int(self.np_random.integers(len(actions)))] if actions else "[0]"

    @property
    def _policy(self) -> Any:
        return OPTIMAL.get(self.id.partition("-")[0])

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Lend the game the shared generator in the state in which it left it."""
        with _LOCK:
            before = random.getstate()
            random.setstate(self.generator)
            try:
                yield
            finally:
                self.generator = random.getstate()
                random.setstate(before)


def listed_actions(told: str) -> list[str]:
    """Return the actions in brackets behind the last word "available" of a text, or else all in brackets, each once.

    >>> listed_actions("for example '[4]'. Available Moves: '[0]', '[8]'"), listed_actions("'[roll]' or '[hold]'")
    (['[0]', '[8]'], ['[roll]', '[hold]'])
    """
    place = told.lower().rfind("available")
    found = _ACTION.findall(told[max(place, 0) :]) or _ACTION.findall(told)
    return list(dict.fromkeys(f"[{action}]" for action in found))


def make_game(id: str, arguments: Mapping[str, Any]) -> Any:
    """Make a game.

    Raises:
        ConfigError: TextArena is missing, does not know the id, or the game refuses its arguments.
    """
    try:
        import textarena
    except ImportError as error:
        raise ConfigError("env=textarena needs TextArena; install drmas_pl[textarena]") from error
    try:
        return textarena.make(env_id=id, **arguments)
    except Exception as error:  # whatever a game raises while it is built
        what = " ".join(str(error).split())[:300]
        raise ConfigError(f"TextArena cannot make {id!r} with {dict(arguments)}: {what}") from error


def count_players(game: Any, wanted: int | None) -> int:
    """Return for how many players a game can be set up: the wanted number, or two, or the least that it allows.

    Raises:
        ConfigError: It cannot be set up for as many.
    """
    counts = (2, 1, *range(3, _MOST_PLAYERS + 1)) if wanted is None else (wanted,)
    reason = ""
    with _LOCK:
        before = random.getstate()
        try:
            for count in counts:
                try:
                    copy.deepcopy(game).reset(num_players=count, seed=0)
                except Exception as error:  # games say in many ways that they want other numbers
                    reason = reason or f"{type(error).__name__}: {error}"
                else:
                    return count
        finally:
            random.setstate(before)
    raise ConfigError(f"the game cannot be set up for {wanted or 'any number of'} players: {reason}")
