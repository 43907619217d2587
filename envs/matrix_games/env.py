"""Repeated zero-sum games of two players who choose at once, with a payoff for each of them.

Place in the data flow: the team writes both choices as one joint action, and the environment pays both agents by name. ``self_play`` is
such a team; its agents have the names of the players.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

from drmas_pl.env import StepResult, TextEnv, read_joint_action
from drmas_pl.envs.puzzles import Split, numbered_tasks
from drmas_pl.types import MetricInfo, Task

Game = Literal["rock_paper_scissors", "matching_pennies"]
PLAYERS: Final = ("first", "second")
ACTIONS: Final[Mapping[Game, tuple[str, ...]]] = {
    "rock_paper_scissors": ("rock", "paper", "scissors"),
    "matching_pennies": ("heads", "tails"),
}
_RULES: Final[Mapping[Game, str]] = {
    "rock_paper_scissors": "Rock, paper, scissors: both players choose at once. Rock beats scissors, scissors beat paper, paper rock.",
    "matching_pennies": "Matching pennies: both players choose at once. The first one wins if both choose the same, else the second.",
}


class MatrixGameEnv(TextEnv):
    """Plays a game of two players for several rounds, each of them a joint action of both.

    A joint action is what :func:`~drmas_pl.env.write_joint_action` makes of the choices of ``first`` and ``second``. A choice that is none
    of those offered loses the round, and two of them draw it. Each round pays the winner ``1 / rounds`` and takes it from the loser, so
    that an episode's payoffs lie in [-1, 1] and add up to 0; the team as a whole earns nothing.

    Args:
        tasks: Games to draw from when ``reset`` is given none; None makes ``size`` training ones.
        game: ``rock_paper_scissors`` or ``matching_pennies``.
        rounds: Number of rounds, at least 1.
        show_rules: Whether the first observation explains the rules.
        size: Number of own games.

    Raises:
        ValueError: An argument is out of its range.
    """

    metric: ClassVar[str] = "first_won"
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "payoff": MetricInfo(
            "payoff of the first player in [-1, 1]; the second player's is its negative",
            "How even the players are.",
            "near 0 where both learn",
        ),
        "drawn_rounds": MetricInfo(
            "share of rounds that nobody won",
            "Rounds without a payoff.",
            "near 1/3, or 0 in matching pennies",
        ),
        "illegal_choices": MetricInfo(
            "share of choices that are none of those offered", "Rounds lost to form.", "towards 0"
        ),
    }
    # what a team of two players asks for: both move at once, nobody is scripted, and payoffs are paid by agent
    opponent: ClassVar[None] = None
    current_player: ClassVar[None] = None
    scores: ClassVar[None] = None

    def __init__(
        self,
        tasks: Sequence[Task] | None = None,
        *,
        game: Game = "rock_paper_scissors",
        rounds: int = 3,
        show_rules: bool = True,
        size: int = 8,
    ) -> None:
        if game not in ACTIONS:
            raise ValueError(f"game must be one of {', '.join(ACTIONS)}, got {game!r}")
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {rounds}")
        super().__init__(make_tasks(game, size=size) if tasks is None else tasks)
        self.game: Game = game
        self.max_turns = rounds
        self.show_rules = show_rules
        self.played: list[tuple[str, str]] = []
        self.wins = [0, 0]
        self.illegal = 0

    def private(self, player: int) -> str:
        """Return what one player alone may see, which is nothing."""
        return ""

    def begin(self, task: Task) -> str:
        """Begin the first round."""
        self.played = []
        self.wins = [0, 0]
        self.illegal = 0
        return f"{_RULES[self.game]}\n\n{self._shown()}" if self.show_rules else self._shown()

    def act(self, action: str) -> StepResult:
        """Play one round."""
        joint = read_joint_action(action)
        first, second = (self._choice(joint.get(player, "")) for player in PLAYERS)
        payoff = self._payoff(first, second)
        self.illegal += (first is None) + (second is None)
        self.played.append((first or "nothing", second or "nothing"))
        self.wins[0] += payoff > 0
        self.wins[1] += payoff < 0
        rounds = self.max_turns
        over = len(self.played) == rounds
        total = (self.wins[0] - self.wins[1]) / rounds
        metrics = {
            "payoff": total,
            "drawn_rounds": (len(self.played) - sum(self.wins)) / len(self.played),
            "illegal_choices": self.illegal / (2 * len(self.played)),
        }
        return StepResult(
            self._shown(),
            terminated=over,
            success=over and total > 0,
            metrics=metrics,
            rewards={"first": payoff / rounds, "second": -payoff / rounds},
        )

    def _choice(self, text: str) -> str | None:
        """Return what a player chose; None for what is not offered."""
        word = text.strip().lower()
        return word if word in ACTIONS[self.game] else None

    def _payoff(self, first: str | None, second: str | None) -> int:
        """Return what the first player wins: 1, 0 or -1."""
        if first is None or second is None:
            return (first is not None) - (second is not None)
        choices = ACTIONS[self.game]
        if self.game == "matching_pennies":
            return 1 if first == second else -1
        # each choice beats the one before it, and the first one the last
        return (0, 1, -1)[(choices.index(first) - choices.index(second)) % 3]

    def _shown(self) -> str:
        """Return the rounds so far, and what may be chosen."""
        lines = [
            f"Round {number}: the first player chose {first}, the second {second}."
            for number, (first, second) in enumerate(self.played, start=1)
        ]
        if self.played:
            lines.append(f"Rounds won: {self.wins[0]} to {self.wins[1]}.")
        if len(self.played) < self.max_turns:
            offered = ", ".join(ACTIONS[self.game])
            lines.append(f"Round {len(self.played) + 1} of {self.max_turns}; possible actions: {offered}.")
        return "\n".join(lines)


def make_tasks(
    game: Game = "rock_paper_scissors", *, split: Split = "train", size: int = 8, seed: int = 0
) -> tuple[Task, ...]:
    """Make games, which all begin alike and are told apart by their names alone.

    Args:
        game: ``rock_paper_scissors`` or ``matching_pennies``; part of the names.
        split: ``train``, ``validation`` or ``test``; part of the names.
        size: Number of tasks, at least 1.
        seed: Part of the names.

    Raises:
        ValueError: An argument is out of its range.
    """
    if game not in ACTIONS:
        raise ValueError(f"game must be one of {', '.join(ACTIONS)}, got {game!r}")
    return numbered_tasks(game, split, size, seed, lambda random: {})
