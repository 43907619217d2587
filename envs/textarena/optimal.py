"""Perfect play in TextArena's games, read off the game's state.

There is one: tic-tac-toe, whose player 0 has the first move and the sign O. In the library's Kuhn poker (0.7.4) bets do not go into the
pot, so that no strategy of the real game is perfect there; ``env=kuhn`` has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from drmas_pl.envs.board_games.tictactoe import TicTacToe

# the probability of each action, as the game takes it
Policy = dict[str, float]


def tictactoe_policy(state: Any) -> Policy:
    """Return the same probability for every move that keeps the value of the position."""
    signs = {"O": "X", "X": "O", "": "."}
    cells = "".join(signs[cell] for row in state.game_state["board"] for cell in row)
    return {f"[{int(move) - 1}]": share for move, share in TicTacToe(cells).optimal().items()}


OPTIMAL: Final[dict[str, Callable[[Any], Policy]]] = {"TicTacToe": tictactoe_policy}
