"""Rules, generator and solver of path planning."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from drmas_pl.envs.moves import read_moves
from drmas_pl.envs.plan_path.maze import Maze, distances, generate_maze, parse_maze, shortest_path
from drmas_pl.errors import ConfigError

SMALL = {"height": 4, "width": 4, "min_distance": 2, "max_distance": 9}


def walk(maze: Maze, moves: tuple[str, ...]) -> Maze | None:
    for move in moves:
        following = maze.after(move)
        if following is None:
            return None
        maze = following
    return maze


def test_shortest_paths_are_those_of_trying_everything() -> None:
    for seed in range(30):
        maze = generate_maze(Random(seed), height=3, width=3, min_distance=1, max_distance=6, obstacles=0.3)
        lengths = (
            length
            for length in range(1, 8)
            for moves in product("UDLR", repeat=length)
            if (end := walk(maze, moves)) is not None and end.solved
        )
        path = shortest_path(maze)
        assert path is not None and len(path) == next(lengths) == distances(maze)[maze.place]


def check_generated(seeds: int) -> None:
    for seed in range(seeds):
        maze = generate_maze(Random(seed))
        assert parse_maze(maze.lines()) == maze
        path = shortest_path(maze)
        assert path is not None and 8 <= len(path) <= 24
        end = walk(maze, path)
        assert end is not None and end.solved


def test_generated_grids_can_be_solved() -> None:
    check_generated(1000)


def test_settings_shape_the_grid() -> None:
    maze = generate_maze(Random(0), height=5, width=7, obstacles=0.0, min_distance=3, max_distance=4)
    assert (maze.height, maze.width, maze.obstacles) == (5, 7, frozenset())
    assert 3 <= distances(maze)[maze.place] <= 4
    keys: list[str] = []
    generate_maze(Random(0), lambda key: keys.append(key) or len(keys) >= 3)  # type: ignore[func-returns-value]
    assert len(keys) >= 3


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"height": 1, "width": 1}, ValueError, "at least 2 cells"),
        ({"obstacles": 1.0}, ValueError, r"obstacles must be in \[0, 1\)"),
        ({"min_distance": 0}, ValueError, "min_distance must be at least 1"),
        ({"min_distance": 9, "max_distance": 8}, ValueError, "at most max_distance, got 9 and 8"),
        ({"height": 2, "width": 2}, ConfigError, "no grid of 2 x 2 cells"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        generate_maze(Random(0), **settings)


@pytest.mark.parametrize("lines", [[], ["A."], ["AG", "."], ["AAG"], ["AGG"], ["A?G"], ["a.G"]])
def test_what_is_no_grid_is_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="must be a rectangle"):
        parse_maze(lines)


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("U", ("U",)),
        (" U,D , L\nR ", ("U", "D", "L", "R")),
        ("[UD]", ("U", "D")),
        ("U;D", None),
        ("'U', 'D'", None),
        ("__import__('os')", None),
        ("U" * 3 + "x", None),
        ("UP", None),
        ("u d", None),
        (",U", None),
        ("U,,D", None),
    ],
)
def test_moves_are_read_literally(text: str, moves: tuple[str, ...] | None) -> None:
    assert read_moves(text) == moves
