"""Two players of a zero-sum game, one agent each; with shared weights a policy plays against itself.

Where players take turns, the environment pays the first player's score s in [0, 1]. The rule ``credit=two_players``, which this team's
configuration chooses, credits every turn of the first player with s and every turn of the second with 1 - s. Where they choose at once, the
environment pays each its own payoff, and the rule credits that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol, cast, runtime_checkable

import gymnasium

from drmas_pl.agents.self_play.roles import Player
from drmas_pl.env import write_joint_action
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.team import Move, Step, Team, Utterances
from drmas_pl.types import Message

PLAYERS: Final = ("first", "second")


@runtime_checkable
class TwoPlayerEnvironment(Protocol):
    """An environment in which two players take turns, or choose at once."""

    opponent: str | None
    """How the scripted opponent plays; None for none."""

    scores: tuple[float, float] | None
    """Scores in [0, 1] of both players; None while the game goes on, and where each player is paid by name."""

    current_player: int | None
    """Player whose turn it is; None where both choose at once."""

    def private(self, player: int) -> str:
        """Return what one player alone may see."""
        ...


class SelfPlayTeam(Team):
    """Plays first → second → first …, or both at once, until the game is over.

    An utterance that is no move loses the game, for whoever made it. Each agent sees the latest public position and what this
    player alone may see, and nothing that the other one wrote. Where the environment has a scripted opponent, one agent plays against it
    and the other one never speaks.

    Args:
        env: An environment of two players, such as ``tictactoe``, ``kuhn`` and ``rock_paper_scissors``.

    Raises:
        ValueError: The environment is no game of two players.
    """

    possible_agents: ClassVar[tuple[str, ...]] = PLAYERS
    grammars: ClassVar[Mapping[str, Grammar]] = dict.fromkeys(PLAYERS, Player.grammar)

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        super().__init__(env)
        if not isinstance(self.unwrapped, TwoPlayerEnvironment):
            raise ValueError(
                f"self-play needs an environment of two players, got {type(self.unwrapped).__name__}; choose env=tictactoe, env=kuhn or "
                "env=rock_paper_scissors"
            )

    def begin(self) -> tuple[Step, ...]:
        """Let the player who has the first move speak, or both at once."""
        player = self._game.current_player
        return (frozenset(PLAYERS) if player is None else PLAYERS[player],)

    def interpret(self, agent: str, parsed: Parsed) -> Parsed:
        """Take an unusable utterance for a move against the rules, so that it is its author who loses."""
        return parsed if parsed.valid else Parsed("valid", action="")

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Play a move; the other player is next, unless a scripted opponent plays it."""
        other = PLAYERS[1 - PLAYERS.index(agent)]
        return Move((other if self._game.opponent is None else agent,), action=parsed.action)

    def play_jointly(self, utterances: Mapping[str, Parsed]) -> Move:
        """Play what both chose; they choose again."""
        choices = {agent: parsed.action for agent, parsed in utterances.items()}
        return Move((frozenset(PLAYERS),), action=write_joint_action(choices))

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Return the latest position, which player the agent is, and what this player alone may see."""
        player = PLAYERS.index(agent)
        own = f"You are the {agent} player."
        if self._game.opponent is None and (private := self._game.private(player)):
            own = f"{own} {private}"
        return (*self.history[-1:], Message("env", "private", own))

    def step(self, action: Utterances) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play a move; the reward at the end of a game with scores is the first player's score, whoever played it."""
        observation, reward, terminated, truncated, info = super().step(action)
        scores = self._game.scores
        return observation, reward if scores is None else scores[0], terminated, truncated, info

    @property
    def _game(self) -> TwoPlayerEnvironment:
        return cast(TwoPlayerEnvironment, self.unwrapped)
