"""Rules, solver and generator of Sudoku: grids of 4 × 4 or 9 × 9 with one solution each.

Legend: a grid is a tuple of rows of numbers, 0 for an empty cell; a mask is an integer whose bit v - 1 stands for the value v.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import isqrt
from random import Random
from typing import Final

from drmas_pl.envs.moves import Cell
from drmas_pl.errors import ConfigError

Grid = tuple[tuple[int, ...], ...]
SIZES: Final = (4, 9)
_ATTEMPTS: Final = 500


def parse_grid(lines: Sequence[str]) -> Grid:
    """Read a grid from rows of digits, with a dot for an empty cell.

    Raises:
        ValueError: It is no 4 × 4 or 9 × 9 grid of permitted digits, or two equal numbers share a row, column or block.

    >>> parse_grid(["1.3.", "....", "....", "...4"])[0]
    (1, 0, 3, 0)
    """
    size = len(lines)
    permitted = ".123456789"[: size + 1]
    if size not in SIZES or not all(len(line) == size and set(line) <= set(permitted) for line in lines):
        raise ValueError(f"must be 4 lines of 4 or 9 lines of 9 digits or dots, got {list(lines)!r}")
    grid = tuple(tuple(permitted.index(sign) for sign in line) for line in lines)
    if found := clashes(grid):
        row, column = found[0]
        raise ValueError(
            f"must not repeat a number, but row {row + 1} column {column + 1} does, got {list(lines)!r}"
        )
    return grid


def write_grid(grid: Grid) -> list[str]:
    """Write a grid as rows of digits, with a dot for an empty cell.

    >>> write_grid(((1, 0), (0, 2)))
    ['1.', '.2']
    """
    return ["".join(str(value) if value else "." for value in row) for row in grid]


def cells_of(size: int) -> list[Cell]:
    """Return all cells, row by row."""
    return list(product(range(size), range(size)))


def filled(grid: Grid, cell: Cell, value: int) -> Grid:
    """Return the grid with another value in one cell.

    >>> filled(((1, 0), (0, 2)), (0, 1), 2)
    ((1, 2), (0, 2))
    """
    row = list(grid[cell[0]])
    row[cell[1]] = value
    return (*grid[: cell[0]], tuple(row), *grid[cell[0] + 1 :])


def clashes(grid: Grid) -> list[Cell]:
    """Return the cells whose number stands in their row, column or block once more.

    >>> clashes(((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0)))
    [(0, 0), (1, 1)]
    """

    def repeated(cell: Cell) -> bool:
        value = grid[cell[0]][cell[1]]
        return value > 0 and any(grid[row][column] == value for row, column in _peers(len(grid), cell))

    return [cell for cell in cells_of(len(grid)) if repeated(cell)]


def solutions(grid: Grid, *, limit: int = 2, random: Random | None = None) -> list[Grid]:
    """Find solutions by trying the values of the most restricted cell first.

    Args:
        grid: Numbers without a clash.
        limit: Number of solutions after which to stop; 2 tells whether there is exactly one.
        random: Shuffles the order of values; None takes them in order.

    >>> [write_grid(found) for found in solutions(parse_grid(["..4.", "...2", "1.24", "4.31"]))]
    [['2143', '3412', '1324', '4231']]
    """
    board = [list(row) for row in grid]
    free = _Free(len(grid))
    empty = set()
    for row, column in cells_of(len(grid)):
        if value := board[row][column]:
            free.flip((row, column), 1 << (value - 1))
        else:
            empty.add((row, column))
    found: list[Grid] = []
    for solution in _search(board, empty, free, random):
        found.append(solution)
        if len(found) >= limit:
            break
    return found


def generate_sudoku(
    random: Random,
    admit: Callable[[str], bool] = lambda key: True,
    *,
    grid_size: int = 4,
    clues: int = 8,
) -> Grid:
    """Draw a grid with exactly one solution, by emptying a full one.

    Args:
        random: Source of every choice.
        admit: Whether a puzzle with this solution, as text, is wanted.
        grid_size: 4 or 9.
        clues: Number of cells that are given; the fewer, the harder.

    Returns:
        The puzzle.

    Raises:
        ConfigError: No puzzle with so few clues was found.
        ValueError: A setting is out of its range.
    """
    if grid_size not in SIZES:
        raise ValueError(f"grid_size must be 4 or 9, got {grid_size}")
    cells = cells_of(grid_size)
    if not 1 <= clues < len(cells):
        raise ValueError(f"clues must be in [1, {len(cells) - 1}] for grid_size={grid_size}, got {clues}")
    empty: Grid = ((0,) * grid_size,) * grid_size
    for _ in range(_ATTEMPTS):
        (full,) = solutions(empty, limit=1, random=random)
        if not admit("\n".join(write_grid(full))):
            continue
        puzzle = _emptied(full, random.sample(cells, len(cells)), len(cells) - clues)
        if puzzle is not None:
            return puzzle
    raise ConfigError(
        f"no puzzle with grid_size={grid_size} and clues={clues} has one solution only, in {_ATTEMPTS} attempts; give more clues"
    )


class _Free:
    """Which values are still free in each row, column and block, as masks."""

    def __init__(self, size: int) -> None:
        self.block = isqrt(size)
        everything = (1 << size) - 1
        self.rows, self.columns, self.blocks = ([everything] * size for _ in range(3))

    def flip(self, cell: Cell, bit: int) -> None:
        """Take a value, or give it back."""
        row, column = cell
        self.rows[row] ^= bit
        self.columns[column] ^= bit
        self.blocks[row // self.block * self.block + column // self.block] ^= bit

    def at(self, cell: Cell) -> int:
        """Return the mask of what fits into a cell."""
        row, column = cell
        block = row // self.block * self.block + column // self.block
        return self.rows[row] & self.columns[column] & self.blocks[block]


def _search(board: list[list[int]], empty: set[Cell], free: _Free, random: Random | None) -> Iterator[Grid]:
    if not empty:
        yield tuple(map(tuple, board))
        return
    # the cell itself breaks ties, so that the order of a set decides nothing
    cell = min(empty, key=lambda place: (bin(free.at(place)).count("1"), place))
    mask = free.at(cell)
    values = [value for value in range(1, len(board) + 1) if mask >> (value - 1) & 1]
    if random is not None:
        random.shuffle(values)
    empty.remove(cell)
    for value in values:
        bit = 1 << (value - 1)
        board[cell[0]][cell[1]] = value
        free.flip(cell, bit)
        yield from _search(board, empty, free, random)
        free.flip(cell, bit)
    board[cell[0]][cell[1]] = 0
    empty.add(cell)


def _emptied(full: Grid, order: Sequence[Cell], holes: int) -> Grid | None:
    """Empty cells in order wherever the solution remains the only one; None where there are too few of these."""
    grid = full
    emptied = 0
    for cell in order:
        if emptied == holes:
            break
        fewer = filled(grid, cell, 0)
        if len(solutions(fewer)) == 1:
            grid = fewer
            emptied += 1
    return grid if emptied == holes else None


def _peers(size: int, cell: Cell) -> set[Cell]:
    """Return the other cells of a cell's row, column and block."""
    block = isqrt(size)
    top = cell[0] // block * block
    left = cell[1] // block * block
    rows = {(cell[0], column) for column in range(size)}
    columns = {(row, cell[1]) for row in range(size)}
    square = set(product(range(top, top + block), range(left, left + block)))
    return (rows | columns | square) - {cell}
