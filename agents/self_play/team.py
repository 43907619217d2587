"""Two seats of a zero-sum game, one agent each; with shared weights a policy plays against itself.

The environment pays the first seat's score s in [0, 1]. The rule ``credit=zero_sum`` with ``critics: [second]``, which this team's
configuration chooses, credits every turn of the first seat with s and every turn of the second with 1 - s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import gymnasium

from drmas_pl.parsing import ActionGrammar, Grammar, Parsed
from drmas_pl.team import Move, Team
from drmas_pl.types import Message

SEATS: Final = ("first", "second")
MOVE: Final = ActionGrammar("action")


@runtime_checkable
class TwoSeats(Protocol):
    """A world in which two seats take turns."""

    opponent: str | None
    """Scripted player of one of the seats; None for none."""

    scores: tuple[float, float] | None
    """Scores in [0, 1] of both seats; None while the game goes on."""

    seat: int
    """Seat whose turn it is."""

    def private(self, seat: int) -> str:
        """Return what one seat alone may see."""
        ...


class SelfPlayTeam(Team):
    """Plays first → second → first … until the game is over.

    An utterance that is no move loses the game, for whoever made it. Each agent sees the latest public position and what its own seat
    alone may see, and nothing that the other one wrote. Where the world has a scripted opponent, one agent plays against it and the other
    one never speaks.

    Args:
        env: A world of two seats, such as ``tictactoe`` and ``kuhn``.

    Raises:
        ValueError: The world has no seats.
    """

    possible_agents: ClassVar[tuple[str, ...]] = SEATS
    grammars: ClassVar[Mapping[str, Grammar]] = dict.fromkeys(SEATS, MOVE)

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        super().__init__(env)
        if not isinstance(self.world, TwoSeats):
            raise ValueError(
                f"self-play needs a world of two seats, got {type(self.world).__name__}; choose env=tictactoe or env=kuhn"
            )

    def begin(self) -> tuple[str, ...]:
        """Let the seat that has the first move speak."""
        return (SEATS[self._seats.seat],)

    def interpret(self, agent: str, parsed: Parsed) -> Parsed:
        """Take an unusable utterance for a move against the rules, so that it is its author who loses."""
        return parsed if parsed.valid else Parsed("valid", action="")

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Play a move; the other seat is next, unless a scripted player has it."""
        other = SEATS[1 - SEATS.index(agent)]
        return Move((other if self._seats.opponent is None else agent,), action=parsed.action)

    def visible(self, agent: str) -> tuple[Message, ...]:
        """Return the latest position, the seat, and what it alone may see."""
        seat = SEATS.index(agent)
        own = f"You are the {agent} player."
        if self._seats.opponent is None and (private := self._seats.private(seat)):
            own = f"{own} {private}"
        return (*self.history[-1:], Message("env", "private", own))

    def step(self, action: str | Parsed) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one utterance; the reward at the end is the first seat's score, whoever played it."""
        observation, reward, terminated, truncated, info = super().step(action)
        scores = self._seats.scores
        return observation, reward if scores is None else scores[0], terminated, truncated, info

    @property
    def _seats(self) -> TwoSeats:
        world = self.world
        assert isinstance(world, TwoSeats)
        return world
