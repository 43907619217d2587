"""Rules, solver and generator of Sokoban."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from drmas_pl.envs.sokoban.warehouse import (
    Warehouse,
    generate_warehouse,
    live_cells,
    parse_warehouse,
    remaining_distance,
    shortest_solution,
)
from drmas_pl.errors import ConfigError

SMALL = ["#####", "#@--#", "#-$.#", "#---#", "#####"]


def walk(level: Warehouse, moves: tuple[str, ...] | str) -> Warehouse | None:
    for move in moves:
        following = level.after(move)
        if following is None:
            return None
        level = following
    return level


@pytest.mark.parametrize(
    ("lines", "move", "after"),
    [
        (["@-"], "R", ["-@"]),
        (["@$-"], "R", ["-@$"]),
        (["@$."], "R", ["-@*"]),
        (["@*-"], "R", ["-+$"]),
        (["-+$"], "L", ["@.$"]),
        (["@$#"], "R", None),
        (["@$$-"], "R", None),
        (["@$"], "R", None),
        (["@#"], "R", None),
        (["@-"], "U", None),
        (["-@$"], "L", ["@-$"]),
    ],
)
def test_moves_push_and_never_pull(lines: list[str], move: str, after: list[str] | None) -> None:
    # what the rules say needs no goal; the text that is read does
    level = parse_rows(lines).after(move)
    assert (level and level.lines()) == after


def parse_rows(lines: list[str]) -> Warehouse:
    boxes = sum(line.count("$") + line.count("*") for line in lines)
    goals = sum(line.count(".") + line.count("*") + line.count("+") for line in lines)
    cells = {(row, column): sign for row, line in enumerate(lines) for column, sign in enumerate(line)}
    if boxes == goals and boxes:
        return parse_warehouse(lines)
    those = {
        signs: frozenset(cell for cell in cells if cells[cell] in signs) for signs in ("#", ".*+", "$*", "@+")
    }
    return Warehouse(
        len(lines), len(lines[0]), those["#"], those[".*+"], those["$*"], next(iter(those["@+"]))
    )


def test_shortest_solutions_are_those_of_trying_everything() -> None:
    for seed in range(8):
        level = generate_warehouse(Random(seed), height=5, width=5, walls=0.0, min_moves=1, max_moves=6)
        lengths = (
            length
            for length in range(1, 8)
            for moves in product("UDLR", repeat=length)
            if (end := walk(level, moves)) is not None and end.solved
        )
        found = shortest_solution(level)
        assert found is not None and len(found) == next(lengths)
        end = walk(level, found)
        assert end is not None and end.solved


def test_the_solver_gives_up_where_it_is_told_to() -> None:
    level = parse_warehouse(SMALL)
    assert shortest_solution(level) == ("D", "R")
    assert shortest_solution(level, max_states=1) is None
    assert shortest_solution(parse_warehouse(["####", "#$-#", "#@.#", "####"])) is None


def test_dead_cells_are_those_from_which_no_box_comes_home() -> None:
    level = parse_warehouse(SMALL)
    inner = {(row, column) for row in (1, 2, 3) for column in (1, 2, 3)}
    for cell in inner - {level.player}:
        alone = Warehouse(5, 5, level.walls, level.goals, frozenset({cell}), level.player)
        starts = [Warehouse(5, 5, level.walls, level.goals, alone.boxes, place) for place in inner - {cell}]
        solvable = any(shortest_solution(start) is not None for start in starts)
        assert (cell in live_cells(level)) == solvable
    assert (3, 1) not in live_cells(level) and (2, 2) in live_cells(level)


def test_the_distance_is_that_of_the_best_assignment() -> None:
    # boxes at 0 and 4, goals at 3 and 5: 3 + 1 rather than 5 + 1
    assert remaining_distance(parse_warehouse(["$--.$.@"])) == 4


def check_generated(seeds: int, **settings: Any) -> None:
    for seed in range(seeds):
        level = generate_warehouse(Random(seed), **settings)
        assert parse_warehouse(level.lines()) == level and not level.solved
        found = shortest_solution(level)
        assert found is not None and 7 <= len(found) <= 20
        end = walk(level, found)
        assert end is not None and end.solved


def test_generated_levels_can_be_solved() -> None:
    check_generated(100)
    check_generated(10, height=7, width=7, boxes=2)


@pytest.mark.slow
def test_a_thousand_generated_levels_can_be_solved() -> None:
    check_generated(1000)
    check_generated(200, height=7, width=7, boxes=2)
    check_generated(20, height=8, width=8, boxes=3)


def test_settings_shape_the_level() -> None:
    level = generate_warehouse(Random(0), height=7, width=8, boxes=2, walls=0.0, min_moves=2, max_moves=60)
    assert (level.height, level.width, len(level.boxes)) == (7, 8, 2)
    assert len(level.walls) == 2 * 8 + 2 * 5
    keys: list[str] = []
    generate_warehouse(Random(0), lambda key: keys.append(key) or len(keys) >= 3)  # type: ignore[func-returns-value]
    assert len(keys) >= 3


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"height": 2}, ValueError, "height and width must be at least 3"),
        ({"boxes": 0}, ValueError, r"boxes must be in \[1, 4\]"),
        ({"walls": 1.0}, ValueError, r"walls must be in \[0, 1\)"),
        ({"min_moves": 0}, ValueError, "min_moves must be at least 1"),
        ({"min_moves": 9, "max_moves": 8}, ValueError, "at most max_moves, got 9 and 8"),
        ({"height": 3, "width": 3}, ConfigError, "no level of 3 x 3 cells"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        generate_warehouse(Random(0), **settings)


@pytest.mark.parametrize("lines", [[], ["@$"], ["$."], ["@@$."], ["@$.", "-"], ["@$.x"], ["@-"], ["@$.."]])
def test_what_is_no_level_is_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="must be a rectangle"):
        parse_warehouse(lines)
