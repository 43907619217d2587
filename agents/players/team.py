"""One agent for each player of an environment of several players; with shared weights a policy plays against itself.

The environment says whose turn it is, what each player sees and what each is paid; agents are called as the players are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import gymnasium

from drmas_pl.agents.self_play.roles import Player
from drmas_pl.env import write_joint_action
from drmas_pl.integrations.players import PlayersEnv
from drmas_pl.parsing import Parsed
from drmas_pl.team import Move, Step, Team
from drmas_pl.types import Message


class PlayersTeam(Team):
    """Plays a game of any number of players, who move one after the other or at once.

    Each agent sees what its player sees and nothing that the others wrote. An utterance that is no move is given to the environment as an
    empty action, for it to answer.

    Args:
        env: An environment of several players, such as ``pettingzoo`` and ``textarena``.

    Raises:
        ValueError: The environment is no game of several players.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        super().__init__(env)
        if not isinstance(self.unwrapped, PlayersEnv):
            raise ValueError(
                f"the team needs an environment of several players, got {type(self.unwrapped).__name__}; choose env=pettingzoo or "
                "env=textarena"
            )
        # who plays is the environment's to say, not a class's
        self.possible_agents = self._game.players  # type: ignore[misc]
        self.grammars = dict.fromkeys(self._game.players, Player.grammar)  # type: ignore[misc]

    def begin(self) -> tuple[Step, ...]:
        """Let the players speak whom the environment lets move first."""
        return self._step()

    def interpret(self, agent: str, parsed: Parsed) -> Parsed:
        """Take an unusable utterance for an empty action, so that the environment answers it."""
        return parsed if parsed.valid else Parsed("valid", action="")

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Play the move of the only player whose turn it is."""
        return self.play_jointly({agent: parsed})

    def play_jointly(self, utterances: Mapping[str, Parsed]) -> Move:
        """Play the moves of all players that move at once."""
        return Move(action=write_joint_action({name: said.action for name, said in utterances.items()}))

    def next_speakers(self, move: Move) -> tuple[Step, ...]:
        """Return the players whose turn it is after a move."""
        return self._step()

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Return what the agent's player sees."""
        return (Message("env", "private", self._game.view(agent)),)

    def _step(self) -> tuple[Step, ...]:
        return (frozenset(self._game.players_to_move),)

    @property
    def _game(self) -> PlayersEnv:
        return cast(PlayersEnv, cast(Any, self.unwrapped))
