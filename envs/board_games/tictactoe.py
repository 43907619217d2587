"""Tic-tac-toe: rules and perfect play.

Legend: cells are counted from 1 to 9, row by row; ``X`` is the first player, ``O`` the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import ClassVar, Final

from drmas_pl.envs.board_games.game import GameState, Policy
from drmas_pl.envs.pictures import BLUE, RED, WHITE, Image, paint

LINES: Final = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@dataclass(frozen=True, slots=True)
class TicTacToe(GameState):
    """A position.

    Attributes:
        cells: Nine signs, row by row: ``X``, ``O``, or a dot.

    >>> TicTacToe().after("5").public()
    '1 2 3\\n4 X 6\\n7 8 9'
    """

    cells: str = "........."
    rules: ClassVar[str] = (
        "Tic-tac-toe: the first player writes X, the second O. Who first has three in a row, column or diagonal wins; a full board without "
        "that is a draw. An action is the number of a free cell. Anything else loses the game."
    )

    @property
    def current_player(self) -> int:
        """Player whose turn it is."""
        return (9 - self.cells.count(".")) % 2

    @property
    def scores(self) -> tuple[float, float] | None:
        """1 for three in a line, 0.5 each for a draw."""
        for line in LINES:
            signs = {self.cells[cell] for cell in line}
            if len(signs) == 1 and signs != {"."}:
                return (1.0, 0.0) if signs == {"X"} else (0.0, 1.0)
        return None if "." in self.cells else (0.5, 0.5)

    def legal(self) -> tuple[str, ...]:
        """Return the free cells."""
        if self.scores is not None:
            return ()
        return tuple(str(place + 1) for place, sign in enumerate(self.cells) if sign == ".")

    def after(self, move: str) -> TicTacToe:
        """Return the position after a legal move."""
        place = int(move) - 1
        return TicTacToe(self.cells[:place] + "XO"[self.current_player] + self.cells[place + 1 :])

    def public(self) -> str:
        """Return the board, with the numbers of free cells."""
        shown = [str(place + 1) if sign == "." else sign for place, sign in enumerate(self.cells)]
        return "\n".join(" ".join(shown[row : row + 3]) for row in (0, 3, 6))

    def optimal(self) -> Policy:
        """Return the same probability for every move that keeps the value of the position."""
        values = {move: _value(self.after(move).cells, self.current_player) for move in self.legal()}
        best = [move for move, value in values.items() if value == max(values.values())]
        return {move: 1 / len(best) for move in best}

    def picture(self) -> Image:
        """Return the board as an image."""
        colours = {"X": BLUE, "O": RED, ".": WHITE}
        rows = [self.cells[row : row + 3] for row in (0, 3, 6)]
        return paint([[colours[sign] for sign in row] for row in rows], rows, ink=WHITE)


def draw_opening(random: Random, moves: int) -> tuple[str, ...]:
    """Draw an opening of at most so many moves, after which the game still goes on.

    Args:
        random: Source of every choice.
        moves: Largest number of moves, 0 to 4; the number is drawn too.

    Raises:
        ValueError: ``moves`` is out of its range.
    """
    # nobody can have three in a line after four moves
    if not 0 <= moves <= 4:
        raise ValueError(f"opening_moves must be in [0, 4], got {moves}")
    return tuple(random.sample("123456789", random.randint(0, moves)))


def play_opening(moves: Sequence[str]) -> TicTacToe:
    """Return the position after an opening.

    Raises:
        ValueError: A move is against the rules, or the game ends with it.
    """
    state = TicTacToe()
    for move in moves:
        if move not in state.legal():
            raise ValueError(f"must be legal moves, got {list(moves)!r}")
        state = state.after(move)
    if state.scores is not None:
        raise ValueError(f"must not end the game, got {list(moves)!r}")
    return state


@cache
def _value(cells: str, player: int) -> float:
    """Return the score of a player when both play perfectly."""
    state = TicTacToe(cells)
    if state.scores is not None:
        return state.scores[player]
    choose = max if state.current_player == player else min
    return choose(_value(state.after(move).cells, player) for move in state.legal())
