"""Steps on a grid: the four directions, and how a list of them is read.

Legend: a cell is (row, column), both from 0, row 0 on top.
"""

from __future__ import annotations

import re
from typing import Final

Cell = tuple[int, int]
STEPS: Final[dict[str, Cell]] = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
_MOVES: Final = re.compile(r"\[?\s*([UDLR](?:\s*,?\s*[UDLR])*)\s*\]?")


def read_moves(text: str) -> tuple[str, ...] | None:
    """Read a list of moves; None for anything else, however close it comes.

    >>> read_moves("U, U,R"), read_moves("[U D]"), read_moves("UDDR")
    (('U', 'U', 'R'), ('U', 'D'), ('U', 'D', 'D', 'R'))
    >>> read_moves("u"), read_moves("go up"), read_moves("")
    (None, None, None)
    """
    match = _MOVES.fullmatch(text.strip())
    return None if match is None else tuple(letter for letter in match[1] if letter in STEPS)


def shifted(cell: Cell, move: str, times: int = 1) -> Cell:
    """Return the cell that lies ``times`` steps in the direction of ``move``.

    >>> shifted((2, 2), "U"), shifted((2, 2), "L", -1)
    ((1, 2), (2, 3))
    """
    row, column = STEPS[move]
    return cell[0] + times * row, cell[1] + times * column


def cell_name(cell: Cell) -> str:
    """Name a cell by the letter of its row and the number of its column; rows past the 26th have two letters.

    >>> cell_name((0, 0)), cell_name((9, 11)), cell_name((27, 0))
    ('a1', 'j12', 'ab1')
    """
    first, last = divmod(cell[0], 26)
    return f"{chr(96 + first) if first else ''}{chr(97 + last)}{cell[1] + 1}"


def manhattan(left: Cell, right: Cell) -> int:
    """Return the number of steps between two cells of an empty grid.

    >>> manhattan((0, 0), (2, 3))
    5
    """
    return abs(left[0] - right[0]) + abs(left[1] - right[1])
