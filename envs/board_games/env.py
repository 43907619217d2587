"""Games of two players: both played by a team, or one of them by a scripted opponent.

Place in the data flow: the environment knows players, not agents. A team such as ``self_play`` makes each agent one of the players and
shows it what this player may see; with a scripted opponent any team of one is the other player.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final, Literal, get_args

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.envs.board_games.game import PLAYERS, GameState, uniform
from drmas_pl.envs.board_games.kuhn import CARDS, deal
from drmas_pl.envs.board_games.tictactoe import draw_opening, play_opening
from drmas_pl.envs.planning import read_action
from drmas_pl.envs.puzzles import Split, draw_puzzles, numbered_tasks
from drmas_pl.types import MetricInfo, Task

Game = Literal["tictactoe", "kuhn"]
Opponent = Literal["random", "optimal"]
PlayerName = Literal["first", "second"]
RENDER_MODES: Final = ("ansi", "rgb_array")


class BoardGameEnv(TextEnv):
    r"""Plays a zero-sum game, one move per action.

    An action is one of the moves that are offered, or a text with it in ``\boxed{…}``; anything else loses the game with the lowest score.
    At the end the reward is a score in [0, 1], 0.5 for a draw: that of the team's player, or of the first player where both are
    played by the team. Success means more than 0.5.

    Args:
        tasks: Openings or deals to draw from when ``reset`` is given none; None draws ``size`` training ones.
        game: ``tictactoe``, in which both see everything, or ``kuhn``, a poker with one card for each player's eyes alone.
        opponent: How a scripted opponent plays: ``random``, or ``optimal``, which never loses in the long run; None lets the team play
            both.
        opponent_player: Which player the scripted opponent is.
        show_rules: Whether the first observation explains the rules.
        render_mode: ``ansi``, ``rgb_array`` or None; onlookers see every card.
        size: Number of own openings or deals.
        opening_moves: Largest number of random moves before the game begins, 0 to 4; tic-tac-toe's alone.

    Raises:
        ConfigError: There are too few openings.
        ValueError: An argument is out of its range.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2, "autoreset_mode": None}
    metric: ClassVar[str] = "won"
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "score": MetricInfo(
            "score in [0, 1] of the first player, or of the one that is not the scripted opponent",
            "Strength against that opponent; near the game's value where both players learn.",
            "rises against a scripted opponent",
        ),
        "drawn": MetricInfo(
            "1 if the game ended in a draw, else 0",
            "Games without a winner.",
            "rises with play that makes no mistakes",
        ),
        "illegal_moves": MetricInfo(
            "1 if a move against the rules, or none, ended the game, else 0",
            "Games lost to form.",
            "towards 0",
        ),
        "game_moves": MetricInfo("number of moves of both players after the opening", "Length of the games."),
    }

    def __init__(
        self,
        tasks: Sequence[Task] | None = None,
        *,
        game: Game = "tictactoe",
        opponent: Opponent | None = None,
        opponent_player: PlayerName = "second",
        show_rules: bool = True,
        render_mode: str | None = None,
        size: int = 8,
        opening_moves: int = 3,
    ) -> None:
        for name, value, choices in (
            ("game", game, get_args(Game)),
            ("opponent", opponent, (None, *get_args(Opponent))),
            ("opponent_player", opponent_player, PLAYERS),
            ("render_mode", render_mode, (None, *RENDER_MODES)),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
        super().__init__(make_tasks(game, size=size, opening_moves=opening_moves) if tasks is None else tasks)
        self.game = game
        self.opponent = opponent
        self.opponent_player = PLAYERS.index(opponent_player)
        self.show_rules = show_rules
        self.render_mode = render_mode
        self.scores: tuple[float, float] | None = None
        self.current_player = 0
        self.moves = 0
        self.state: GameState

    def private(self, player: int) -> str:
        """Return what one player alone may see; empty for nothing."""
        return self.state.private(player)

    def begin(self, task: Task) -> str:
        """Set the position up; a scripted opponent who has the first move makes it."""
        self.state = _open(self.game, task)
        self.scores = None
        self.moves = 0
        self.current_player = self.state.current_player
        self._reply()
        shown = self._shown()
        return f"{self.state.rules}\n\n{shown}" if self.show_rules else shown

    def act(self, action: str) -> StepResult:
        """Play one move, and the scripted opponent's answer."""
        move = read_action(action)
        if move not in self.state.legal():
            loser = self.current_player
            self.scores = (float(loser == 1), float(loser == 0))
            return self._result(f"The {PLAYERS[loser]} player made no legal move and loses.", illegal=True)
        self._play(move)
        self._reply()
        return self._result(self._shown(), illegal=False)

    def render(self) -> Any:
        """Return everything there is to see, both cards included, in the way of ``render_mode``.

        Raises:
            RuntimeError: No episode was started.
        """
        if self.render_mode is None:
            return None
        if self.task is None:
            raise RuntimeError("BoardGameEnv.render called before reset; there is no position yet")
        if self.render_mode == "rgb_array":
            return self.state.picture()
        cards = [
            f"{name}: {text}" for name, text in zip(PLAYERS, map(self.private, (0, 1)), strict=True) if text
        ]
        return "\n".join([self.state.public(), *cards])

    def _play(self, move: str) -> None:
        self.state = self.state.after(move)
        self.current_player = self.state.current_player
        self.scores = self.state.scores
        self.moves += 1

    def _reply(self) -> None:
        """Let the scripted opponent move while it is its turn."""
        while (
            self.opponent is not None and self.scores is None and self.current_player == self.opponent_player
        ):
            policy = uniform(self.state) if self.opponent == "random" else self.state.optimal()
            moves = list(policy)
            self._play(moves[int(self.np_random.choice(len(moves), p=list(policy.values())))])

    def _shown(self) -> str:
        """Return what may be seen: by both players, or by the one that the team plays."""
        lines = [self.state.public()]
        if self.opponent is not None:
            lines.append(self.private(1 - self.opponent_player))
        if moves := self.state.legal():
            lines.append(
                f"The {PLAYERS[self.current_player]} player's turn; possible actions: {', '.join(moves)}."
            )
        return "\n".join(line for line in lines if line)

    def _result(self, observation: str, *, illegal: bool) -> StepResult:
        if self.scores is None:
            return StepResult(observation, metrics={"game_moves": float(self.moves)})
        own = self.scores[0 if self.opponent is None else 1 - self.opponent_player]
        return StepResult(
            observation,
            reward=own,
            terminated=True,
            success=own > 0.5,
            metrics={
                "score": own,
                "drawn": float(own == 0.5),
                "illegal_moves": float(illegal),
                "game_moves": float(self.moves),
            },
        )


def make_tasks(
    game: Game = "tictactoe",
    *,
    split: Split = "train",
    size: int = 8,
    seed: int = 0,
    opening_moves: int = 3,
) -> tuple[Task, ...]:
    """Draw openings of tic-tac-toe, or deals of Kuhn poker.

    Openings are told apart by their position, and no two splits share one. With ``opening_moves=0`` there is one position, and of Kuhn
    poker there are six deals: such tasks are told apart by their names alone.

    Args:
        game: ``tictactoe`` or ``kuhn``.
        split: ``train``, ``validation`` or ``test``.
        size: Number of tasks, at least 1.
        seed: Chooses another series.
        opening_moves: Largest number of random moves before the game begins, 0 to 4; tic-tac-toe's alone.

    Returns:
        Tasks whose ``metadata`` holds ``opening``, a list of moves, or ``cards``, the two cards.

    Raises:
        ConfigError: There are too few openings.
        ValueError: An argument is out of its range.
    """
    if game == "kuhn":
        return numbered_tasks(game, split, size, seed, lambda random: {"cards": random.sample(CARDS, 2)})
    if opening_moves == 0:
        return numbered_tasks(game, split, size, seed, lambda random: {"opening": []})

    def draw(random: Random, admit: Callable[[str], bool]) -> tuple[str, ...]:
        while True:
            moves = draw_opening(random, opening_moves)
            if admit(play_opening(moves).public()):
                return moves

    puzzles = draw_puzzles(
        game,
        draw,
        written=lambda moves: play_opening(moves).public(),
        split=split,
        size=size,
        seed=seed,
    )
    return tuple(
        Task(name, play_opening(moves).public(), data_source=game, metadata={"opening": list(moves)})
        for name, moves in puzzles
    )


def _open(game: Game, task: Task) -> GameState:
    """Return the first position of a task."""
    key = "cards" if game == "kuhn" else "opening"
    values = task.metadata.get(key)
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) for value in values):
        raise ValueError(
            f"task {task.id!r} needs metadata[{key!r}], a list of texts, got {values!r}; "
            "make tasks for this environment with its make_tasks"
        )
    try:
        return play_opening(values) if game == "tictactoe" else deal(values)
    except ValueError as error:
        raise ValueError(f"task {task.id!r}: metadata[{key!r}] {error}") from error
