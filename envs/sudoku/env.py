"""Sudoku of 4 × 4 or 9 × 9 cells, filled cell by cell or as a whole."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Final, Literal, get_args

from drmas_pl.envs.moves import Cell
from drmas_pl.envs.pictures import GREEN, RED, WHITE, Image, paint
from drmas_pl.envs.planning import METRICS, BoardFormat, PlanningEnv, Played, draw_tasks, read_lines
from drmas_pl.envs.puzzles import Split
from drmas_pl.envs.sudoku.grid import (
    Grid,
    cells_of,
    clashes,
    filled,
    generate_sudoku,
    parse_grid,
    solutions,
    write_grid,
)
from drmas_pl.types import MetricInfo, Task

ActionFormat = Literal["fills", "grid"]
_FILL: Final = re.compile(r"([1-9]) ([1-9]) ([0-9])")
_RULES: Final = (
    "Fill the Sudoku: every row, every column and every block of {block} x {block} cells holds each number from 1 to {size} once. "
    "The numbers that are given must stay. "
)
_DOTS: Final = "Dots are empty cells. "
_LISTED: Final = "Numbers are listed by row and column. "
_FORMS: Final[Mapping[ActionFormat, str]] = {
    "fills": (
        "An action fills cells: row, column and number with blanks between them, rows and columns counted from 1, and a semicolon between "
        "two cells. The number 0 empties a cell."
    ),
    "grid": "An action is the whole grid with every cell filled: one line of digits per row.",
}
_UNREADABLE: Final[Mapping[ActionFormat, str]] = {
    "fills": "Not executed: an action is a list of row, column and number, with semicolons between them.",
    "grid": "Not executed: an action is the whole grid, one line of digits per row.",
}


@dataclass(frozen=True, slots=True)
class Sheet:
    """A puzzle and what was filled in.

    Attributes:
        clues: The puzzle, 0 for a cell to be filled.
        grid: Clues and what was filled in.
        solution: The only way to fill it.
    """

    clues: Grid
    grid: Grid
    solution: Grid


class SudokuEnv(PlanningEnv[Sheet]):
    """Fills a Sudoku whose solution is the only one.

    Clues are checked: an action that would change one is stopped there. Everything else is filled in, wrong numbers as well, and the answer
    names the cells whose number stands in their row, column or block twice. Solving earns 1. The potential is the number of right cells
    minus the number of wrong ones, divided by the number of cells to be filled, so that guessing loses on average.

    Args:
        tasks: Puzzles to draw from when ``reset`` is given none; None draws ``size`` training puzzles with the settings below.
        action_format: ``fills`` lists cells and their numbers, ``grid`` is the whole grid.
        max_turns: Largest number of actions.
        step_cost: Price of an action, at least 0.
        shaping: Weight of the potential's change, at least 0.
        show_rules: Whether the first observation explains the rules.
        board_format: ``grid`` draws the grid; ``cells`` lists numbers, clues at first and what was filled in afterwards.
        render_mode: ``ansi``, ``rgb_array`` or None.
        size: Number of own puzzles.
        grid_size: Number of rows of these: 4 or 9.
        clues: Number of cells that are given; the fewer, the harder.

    Raises:
        ConfigError: No puzzle fits the settings.
        ValueError: An argument is out of its range.
    """

    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "illegal_actions": METRICS["illegal_actions"],
        "right_cells": MetricInfo(
            "share of the cells to be filled that hold the right number",
            "How far solutions come.",
            "rises; at least success",
        ),
    }

    def __init__(
        self,
        tasks: Sequence[Task] | None = None,
        *,
        action_format: ActionFormat = "fills",
        max_turns: int = 6,
        step_cost: float = 0.01,
        shaping: float = 0.5,
        show_rules: bool = True,
        board_format: BoardFormat = "grid",
        render_mode: str | None = None,
        size: int = 8,
        grid_size: int = 4,
        clues: int = 8,
    ) -> None:
        if action_format not in get_args(ActionFormat):
            raise ValueError(f"action_format must be 'fills' or 'grid', got {action_format!r}")
        super().__init__(
            make_tasks(size=size, grid_size=grid_size, clues=clues) if tasks is None else tasks,
            max_turns=max_turns,
            max_moves=None,
            step_cost=step_cost,
            shaping=shaping,
            show_rules=show_rules,
            board_format=board_format,
            render_mode=render_mode,
        )
        self.action_format: ActionFormat = action_format

    def explain(self, state: Sheet) -> str:
        """Explain rules and actions for the grid's size."""
        size = len(state.grid)
        dots = _DOTS if self.board_format == "grid" else _LISTED
        return _RULES.format(size=size, block={4: 2, 9: 3}[size]) + dots + _FORMS[self.action_format]

    def load(self, task: Task) -> Sheet:
        """Read the puzzle and solve it."""
        clues = read_lines(task, parse_grid)
        found = solutions(clues)
        if len(found) != 1 or found[0] == clues:
            raise ValueError(
                f"task {task.id!r}: the puzzle must have empty cells and exactly one solution, got {write_grid(clues)}; "
                "drop the task"
            )
        return Sheet(clues, clues, found[0])

    def play(self, action: str, moves_left: int | None) -> Played[Sheet]:
        """Fill in what the action says, up to the first change of a clue."""
        sheet = self.state
        size = len(sheet.grid)
        fills = read_fills(action, size) if self.action_format == "fills" else read_whole(action, size)
        if fills is None:
            return Played(sheet, 1, _UNREADABLE[self.action_format], False)
        grid = sheet.grid
        for (row, column), value in fills:
            if sheet.clues[row][column] not in (0, value):
                note = f"Row {row + 1} column {column + 1} is given and must stay; you stopped before it."
                return Played(replace(sheet, grid=grid), 1, note, False)
            grid = filled(grid, (row, column), value)
        return Played(replace(sheet, grid=grid), 1, _describe(grid), True)

    def potential(self, state: Sheet) -> float:
        """Return right minus wrong cells, as a share of those to be filled."""
        right, wrong, holes = _count(state)
        return (right - wrong) / holes

    def solved(self, state: Sheet) -> bool:
        """Tell whether every cell holds its number."""
        return state.grid == state.solution

    def outcome_metrics(self, state: Sheet) -> dict[str, float]:
        """Return the share of right cells."""
        right, _, holes = _count(state)
        return {"right_cells": right / holes}

    def board(self, state: Sheet) -> str:
        """Return the grid as text."""
        return "\n".join(write_grid(state.grid))

    def cells(self, state: Sheet, *, changeable: bool) -> str:
        """List the numbers that are given, or those that were filled in."""
        size = len(state.grid)
        given = state.clues
        return "; ".join(
            f"{row + 1} {column + 1} is {state.grid[row][column]}"
            for row, column in cells_of(size)
            if state.grid[row][column] and bool(given[row][column]) is not changeable
        )

    def picture(self, state: Sheet) -> Image:
        """Return the grid as an image; what was filled in is green, and red where it clashes."""
        wrong = set(clashes(state.grid))
        size = len(state.grid)
        colours = [[WHITE] * size for _ in range(size)]
        for row, column in cells_of(size):
            if (row, column) in wrong:
                colours[row][column] = RED
            elif state.grid[row][column] and not state.clues[row][column]:
                colours[row][column] = GREEN
        return paint(colours, write_grid(state.grid))


def read_fills(text: str, size: int) -> list[tuple[Cell, int]] | None:
    """Read cells and their numbers; None for anything else.

    >>> read_fills("1 2 3; 4 4 0", 4)
    [((0, 1), 3), ((3, 3), 0)]
    >>> read_fills("1 2 5", 4) is None, read_fills("row 1", 4) is None
    (True, True)
    """
    fills = []
    for part in text.strip().removesuffix(";").split(";"):
        match = _FILL.fullmatch(" ".join(part.split()))
        if match is None or not all(int(number) <= size for number in match.groups()):
            return None
        row, column, value = map(int, match.groups())
        fills.append(((row - 1, column - 1), value))
    return fills


def read_whole(text: str, size: int) -> list[tuple[Cell, int]] | None:
    """Read a full grid, one line per row with or without blanks between the digits; None for anything else.

    >>> read_whole("12\\n2 1", 2)
    [((0, 0), 1), ((0, 1), 2), ((1, 0), 2), ((1, 1), 1)]
    >>> read_whole("12 21", 2) is None
    True
    """
    rows = ["".join(line.split()) for line in text.strip().splitlines()]
    permitted = set("123456789"[:size])
    if len(rows) != size or not all(len(row) == size and set(row) <= permitted for row in rows):
        return None
    return [((row, column), int(rows[row][column])) for row, column in cells_of(size)]


def make_tasks(
    *, split: Split = "train", size: int = 8, seed: int = 0, grid_size: int = 4, clues: int = 8
) -> tuple[Task, ...]:
    """Draw different puzzles of one split.

    Args:
        split: ``train``, ``validation`` or ``test``; no two share a solution, whatever the seeds.
        size: Number of puzzles, at least 1.
        seed: Chooses another series.
        grid_size: 4 or 9.
        clues: Number of cells that are given.

    Returns:
        Tasks whose ``metadata["board"]`` holds the lines of the puzzle.

    Raises:
        ConfigError: Too few puzzles fit.
        ValueError: An argument is out of its range.
    """
    generate = partial(generate_sudoku, grid_size=grid_size, clues=clues)
    return draw_tasks("sudoku", generate, lines=write_grid, split=split, size=size, seed=seed)


def _count(sheet: Sheet) -> tuple[int, int, int]:
    """Count right cells, wrong cells and all that are to be filled."""
    holes = [(row, column) for row, column in cells_of(len(sheet.grid)) if not sheet.clues[row][column]]
    right = sum(sheet.grid[row][column] == sheet.solution[row][column] for row, column in holes)
    empty = sum(not sheet.grid[row][column] for row, column in holes)
    return right, len(holes) - right - empty, len(holes)


def _describe(grid: Grid) -> str:
    if found := clashes(grid):
        places = ", ".join(f"row {row + 1} column {column + 1}" for row, column in found)
        return f"These numbers stand twice in their row, column or block: {places}."
    empty = sum(not value for row in grid for value in row)
    return f"No number stands twice. Empty cells: {empty}."
