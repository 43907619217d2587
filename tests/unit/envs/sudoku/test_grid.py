"""Rules, solver and generator of Sudoku."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from drmas_pl.envs.sudoku.grid import Grid, clashes, generate_sudoku, parse_grid, solutions, write_grid
from drmas_pl.errors import ConfigError

# A puzzle that was worked out on paper, from Wikipedia's article on Sudoku; its solution is unique.
KNOWN = [
    "53..7....",
    "6..195...",
    ".98....6.",
    "8...6...3",
    "4..8.3..1",
    "7...2...6",
    ".6....28.",
    "...419..5",
    "....8..79",
]
SOLVED = [
    "534678912",
    "672195348",
    "198342567",
    "859761423",
    "426853791",
    "713924856",
    "961537284",
    "287419635",
    "345286179",
]


def correct(grid: Grid) -> bool:
    """Check a full grid by its rows, columns and blocks, without the code that is tested."""
    size = len(grid)
    block = {4: 2, 9: 3}[size]
    numbers = set(range(1, size + 1))
    columns = list(zip(*grid, strict=True))
    blocks = [
        [grid[top + row][left + column] for row, column in product(range(block), repeat=2)]
        for top, left in product(range(0, size, block), repeat=2)
    ]
    return all(set(group) == numbers for group in [*grid, *columns, *blocks])


def test_a_known_puzzle_is_solved() -> None:
    assert [write_grid(found) for found in solutions(parse_grid(KNOWN))] == [SOLVED]


def test_all_grids_of_four_are_found() -> None:
    # 288 is the number of 4 x 4 Sudoku grids
    found = solutions(((0,) * 4,) * 4, limit=1000)
    assert len(found) == len(set(found)) == 288 and all(correct(grid) for grid in found)
    assert len(solutions(((0,) * 4,) * 4)) == 2


def test_what_has_no_solution_has_none() -> None:
    assert solutions(parse_grid(["12..", "...3", "...4", "...."])) == []


def check_generated(seeds: int, **settings: Any) -> None:
    for seed in range(seeds):
        puzzle = generate_sudoku(Random(seed), **settings)
        assert not clashes(puzzle)
        assert sum(value > 0 for row in puzzle for value in row) == settings.get("clues", 8)
        found = solutions(puzzle, limit=3)
        assert len(found) == 1 and correct(found[0])


def test_generated_puzzles_have_one_solution() -> None:
    check_generated(300)
    check_generated(50, clues=5)
    check_generated(10, grid_size=9, clues=36)


@pytest.mark.slow
def test_a_thousand_generated_puzzles_have_one_solution() -> None:
    check_generated(1000)
    check_generated(1000, clues=5)
    check_generated(1000, grid_size=9, clues=36)
    check_generated(50, grid_size=9, clues=28)


def test_uniqueness_is_what_trying_everything_says() -> None:
    everything = solutions(((0,) * 4,) * 4, limit=1000)
    for seed in range(100):
        puzzle = generate_sudoku(Random(seed), clues=6)
        fitting = [
            grid
            for grid in everything
            if all(
                puzzle[row][column] in (0, grid[row][column]) for row, column in product(range(4), repeat=2)
            )
        ]
        assert fitting == solutions(puzzle)


def test_only_admitted_solutions_are_used() -> None:
    keys: list[str] = []
    generate_sudoku(Random(0), lambda key: keys.append(key) or len(keys) >= 3)  # type: ignore[func-returns-value]
    assert len(keys) >= 3


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"grid_size": 6}, ValueError, "grid_size must be 4 or 9, got 6"),
        ({"clues": 0}, ValueError, r"clues must be in \[1, 15\]"),
        ({"grid_size": 9, "clues": 81}, ValueError, r"clues must be in \[1, 80\]"),
        ({"clues": 2}, ConfigError, "no puzzle with grid_size=4 and clues=2"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        generate_sudoku(Random(0), **settings)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "must be 4 lines"),
        (["...."] * 3, "must be 4 lines"),
        (["5...", "....", "....", "...."], "must be 4 lines"),
        (["11..", "....", "....", "...."], "row 1 column 1"),
        (["1...", "1...", "....", "...."], "must not repeat"),
    ],
)
def test_what_is_no_grid_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_grid(lines)
