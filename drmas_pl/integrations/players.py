"""Environments of several named players, some of whom may be scripted.

Place in the data flow: adapters of games derive from :class:`PlayersEnv`. A team such as ``players`` makes each player that is not scripted
an agent, shows it what this player sees, and hands over what the players that move now have said. Where one player is left, any team of
one plays it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from drmas_pl.env import StepResult, TextEnv, read_joint_action
from drmas_pl.integrations.gymnasium_env import ILLEGAL_ACTIONS, make_tasks
from drmas_pl.seeding import derive_seed
from drmas_pl.types import MetricInfo, Task
from drmas_pl.utils.validation import check_count, check_returned

# what a scripted player sees, and what it says to that
ScriptedPlayer = Callable[[str], str]
OnIllegal = Literal["continue", "end", "random"]


@dataclass(frozen=True, slots=True)
class PlayerOptions:
    """What all environments of several players have in common.

    Attributes:
        opponents: Scripted players by name: ``random``, or a function of what the player sees that returns what it says.
        instructions: What the first observation begins with, such as the rules.
        on_illegal: What text that names no possible action leads to: ``continue`` tells its author so and costs a turn; ``end`` ends the
            episode; ``random`` plays a possible action.
        illegal_reward: What the author of such text is paid.
        success_player: Whose reward says whether an episode is a success; the first player that is not scripted by default.
        success_reward: Least sum of that player's rewards in a successful episode.
        max_turns: Turns after which an episode is truncated.
    """

    opponents: Mapping[str, str | ScriptedPlayer]
    instructions: str
    on_illegal: OnIllegal
    illegal_reward: float
    success_player: str | None
    success_reward: float
    max_turns: int


class PlayersEnv(TextEnv):
    """A text environment in which named players move, one after the other or several at once.

    What players earn is paid to each of them alone; where all but one are scripted, the one's reward is the environment's. Subclasses
    implement what follows on the constructor, and call :meth:`use_players` with the names when they know them.

    Args:
        options: What all environments of several players have in common.
        tasks: Start states; None takes ``episodes`` of them.
        episodes: Number of start states, one for each seed from 0.

    Raises:
        ValueError: An option is out of its range.
    """

    scripts: ClassVar[tuple[str, ...]] = ("random",)
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "illegal_actions": ILLEGAL_ACTIONS,
        "game_moves": MetricInfo("number of moves of all players", "Length of the games."),
    }

    def __init__(
        self, options: PlayerOptions, *, tasks: Sequence[Task] | None = None, episodes: int = 32
    ) -> None:
        super().__init__(make_tasks(size=episodes) if tasks is None else tasks)
        check_count("max_turns", options.max_turns, low=1)
        if options.on_illegal not in get_args(OnIllegal):
            raise ValueError(
                f"on_illegal must be one of {', '.join(get_args(OnIllegal))}, got {options.on_illegal!r}"
            )
        self.options = options
        self.max_turns = options.max_turns
        self.all_players: tuple[str, ...] = ()
        self.players: tuple[str, ...] = ()
        self.players_to_move: tuple[str, ...] = ()
        self.views: dict[str, str] = {}
        self.earned: dict[str, float] = {}
        self.turns = 0
        self.moves = 0
        self.illegal_actions = 0

    @abstractmethod
    def start(self, task: Task, seed: int) -> None:
        """Set the state of a task up."""

    @abstractmethod
    def moving(self) -> tuple[str, ...]:
        """Return who moves now, several where they move at once; nobody when the episode is over."""

    @abstractmethod
    def describe(self, player: str) -> str:
        """Return what a player sees who moves now; asked once per move."""

    @abstractmethod
    def read(self, player: str, text: str) -> Any:
        """Return the action that a text names.

        Raises:
            ValueError: It names none that is possible; the message says what to write instead.
        """

    @abstractmethod
    def draw(self, player: str) -> Any:
        """Return a possible action at random, from ``self.np_random``."""

    @abstractmethod
    def advance(self, actions: Mapping[str, Any]) -> Mapping[str, float]:
        """Let those who move now move, and return what each player is paid for it."""

    def was_cut(self) -> bool:
        """Tell whether the episode is over for a limit and not by the rules."""
        return False

    def scripted(self, player: str) -> Any:
        """Return the action of a scripted player."""
        opponent = self.options.opponents[player]
        if callable(opponent):
            said = opponent(self.describe(player))
            check_returned(f"what the opponent {player!r} says", said, str, "a text")
            return self.read(player, said)
        return self.draw(player)

    def use_players(self, names: Sequence[str]) -> None:
        """Note the names of all players.

        Raises:
            ValueError: An option names somebody else, or all players are scripted.
        """
        self.all_players = tuple(names)
        opponents = self.options.opponents
        unknown = [
            name for name in (*opponents, self.options.success_player or names[0]) if name not in names
        ]
        if unknown:
            raise ValueError(f"opponents and success_player name {unknown}; the players are {list(names)}")
        wrong = {
            name: how for name, how in opponents.items() if not callable(how) and how not in self.scripts
        }
        if wrong:
            raise ValueError(
                f"an opponent must be {' or '.join(map(repr, self.scripts))}, or a function of what it sees, got {wrong}"
            )
        self.players = tuple(name for name in names if name not in opponents)
        if not self.players:
            raise ValueError("all players are scripted; leave one out of opponents")

    def view(self, player: str) -> str:
        """Return what a player sees: now if it moves now, else when it moved last."""
        return self.views.get(player, "")

    def begin(self, task: Task) -> str:
        """Set the state up, and let scripted players move until somebody else does."""
        self.turns = 0
        self.moves = 0
        self.illegal_actions = 0
        self.views = {}
        self.start(task, int(task.metadata.get("seed", derive_seed("start", task.id) % (1 << 32))))
        self.earned = dict.fromkeys(self.all_players, 0.0)
        self._settle()
        shown = self._shown()
        return f"{self.options.instructions}\n\n{shown}" if self.options.instructions else shown

    def act(self, action: str) -> StepResult:
        """Let the players that move now do what they said; then scripted players move."""
        self.turns += 1
        before = dict(self.earned)
        actions, wrong = self._read_all(self._said(action))
        ends = False
        if wrong:
            ends = self._answer_illegal(actions, wrong)
        if not ends and len(actions) == len(self.players_to_move):
            self._move(actions)
            self._settle()
        return self._result(before, ends=ends)

    def _said(self, action: str) -> dict[str, str]:
        """Return what each player that moves now has said; a text that is no joint action is the word of the only one."""
        said = read_joint_action(action)
        if set(said) == set(self.players_to_move):
            return said
        return dict.fromkeys(self.players_to_move, action if len(self.players_to_move) == 1 else "")

    def _read_all(self, said: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, ValueError]]:
        actions: dict[str, Any] = {}
        wrong: dict[str, ValueError] = {}
        for player, text in said.items():
            try:
                actions[player] = self.read(player, text)
            except ValueError as error:
                wrong[player] = error
        return actions, wrong

    def _answer_illegal(self, actions: dict[str, Any], wrong: Mapping[str, ValueError]) -> bool:
        """Do what ``on_illegal`` says, and tell whether the episode ends there."""
        self.illegal_actions += len(wrong)
        for player, error in wrong.items():
            self.earned[player] += self.options.illegal_reward
            if self.options.on_illegal == "random":
                actions[player] = self.draw(player)
            else:
                # the view before goes on without an earlier complaint
                plain = self.views[player].partition("\nThis names no action: ")[0]
                self.views[player] = f"{plain}\nThis names no action: {error}"
        return self.options.on_illegal == "end"

    def _move(self, actions: Mapping[str, Any]) -> None:
        """Let everybody who moves now move, scripted players among them."""
        movers = self.moving()
        joint = {name: actions[name] if name in actions else self.scripted(name) for name in movers}
        self.moves += len(joint)
        for player, reward in self.advance(joint).items():
            self.earned[player] += reward

    def _settle(self) -> None:
        """Let scripted players move until somebody else does, and describe what these see."""
        while (movers := self.moving()) and not set(movers) & set(self.players):
            self._move({})
        self.players_to_move = tuple(name for name in movers if name in self.players)
        for player in self.players_to_move:
            self.views[player] = self.describe(player)

    def _result(self, before: Mapping[str, float], *, ends: bool) -> StepResult:
        over = ends or not self.moving()
        late = not over and self.turns >= self.max_turns
        truncated = late or (over and not ends and self.was_cut())
        terminated = over and not truncated
        if over:
            self.players_to_move = ()
        paid = {name: self.earned[name] - before[name] for name in self.players}
        alone = len(self.players) == 1
        judge = self.options.success_player or self.players[0]
        solved = terminated and not ends and self.earned[judge] >= self.options.success_reward
        return StepResult(
            "" if over else self._shown(),
            paid[self.players[0]] if alone else 0.0,
            terminated,
            truncated,
            solved,
            {"illegal_actions": float(self.illegal_actions), "game_moves": float(self.moves)},
            {} if alone else paid,
        )

    def _shown(self) -> str:
        """Return what everybody may see: whose turn it is, or what the only player sees."""
        if len(self.players) == 1:
            return self.view(self.players[0])
        return f"{' and '.join(self.players_to_move)} to move."
