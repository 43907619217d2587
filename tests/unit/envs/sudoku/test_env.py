"""Sudoku: what play earns, how episodes end, what is shown."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.agents.single import SingleTeam
from drmas_pl.envs.sudoku import SudokuEnv, make_tasks
from drmas_pl.envs.sudoku.env import read_fills, read_whole
from drmas_pl.envs.sudoku.grid import parse_grid, solutions, write_grid
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Task
from tests.helpers.audits import check_clones, check_contracts, play, play_at_random

BOARD = ["1234", "3412", "2143", "43.."]
TASK = Task("t", "grid", metadata={"board": BOARD})
WHOLE = "1234\n3412\n2143\n4321"


def start(**settings: Any) -> SudokuEnv:
    env = SudokuEnv([TASK], **settings)
    env.reset()
    return env


@pytest.mark.parametrize(("action_format", "action"), [("fills", "4 3 2; 4 4 1"), ("grid", WHOLE)])
def test_a_solution_earns_one_and_the_potential(action_format: Any, action: str) -> None:
    observation, reward, terminated, truncated, info = start(action_format=action_format).step(action)
    assert reward == pytest.approx(1 + 0.5 - 0.01)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert info["metrics"] == {"illegal_actions": 0.0, "right_cells": 1.0}
    assert observation == "Solved.\n" + WHOLE


@pytest.mark.parametrize(
    ("action", "reward", "shown"),
    [
        ("4 3 2", 0.25 - 0.01, "No number stands twice. Empty cells: 1."),
        ("4 3 1", -0.25 - 0.01, "These numbers stand twice"),
        ("4 3 2; 4 3 0", -0.01, "No number stands twice. Empty cells: 2."),
        ("1 1 2", -0.01, "Row 1 column 1 is given and must stay"),
        ("4 3 2; 1 1 2; 4 4 1", 0.25 - 0.01, "Row 1 column 1 is given"),
        ("1 1 1", -0.01, "No number stands twice. Empty cells: 2."),
        ("4 3 5", -0.01, "Not executed"),
        ("four three two", -0.01, "Not executed"),
        (WHOLE, -0.01, "Not executed"),
    ],
)
def test_one_action(action: str, reward: float, shown: str) -> None:
    observation, found, terminated, truncated, _ = start().step(action)
    assert found == pytest.approx(reward) and observation.startswith(shown)
    assert not terminated and not truncated


def test_clues_are_checked_in_whole_grids_too() -> None:
    # a correct grid, but of another puzzle
    other = "2143\n4321\n1234\n3412"
    observation, reward, terminated, _, info = start(action_format="grid").step(other)
    assert reward == pytest.approx(-0.01) and not terminated and not info["success"]
    assert observation.startswith("Row 1 column 1 is given") and info["metrics"]["illegal_actions"] == 1.0


def test_a_limit_truncates_and_is_no_success() -> None:
    env = start(max_turns=2)
    assert env.step("")[2:4] == (False, False)
    _, _, terminated, truncated, info = env.step("4 3 2")
    assert (terminated, truncated, info["success"]) == (False, True, False)


def test_settings_count() -> None:
    assert start(step_cost=0.5).step("")[1] == -0.5
    assert start(shaping=2.0, step_cost=0.0).step("4 3 2")[1] == 1.0
    assert SudokuEnv([TASK], show_rules=False).reset()[0] == "\n".join(BOARD)
    assert "one line of digits per row" in SudokuEnv([TASK], action_format="grid").reset()[0]
    (task,) = SudokuEnv(size=1, grid_size=9, clues=40).tasks
    assert len(task.metadata["board"]) == 9 and task.question.count(".") == 41
    assert "3 x 3 cells" in SudokuEnv([task]).reset()[0]


@pytest.mark.parametrize("action_format", ["fills", "grid"])
def test_simple_players_solve_nothing_and_earn_nothing(action_format: Any) -> None:
    tasks = make_tasks(size=100, seed=1)
    env = SudokuEnv(tasks, action_format=action_format)

    def fill(source: Any) -> str:
        return " ".join(str(source.randint(1, 4)) for _ in range(3))

    def several(source: Any) -> str:
        return "; ".join(fill(source) for _ in range(4))

    def whole(source: Any) -> str:
        return "\n".join("".join(source.choices("1234", k=4)) for _ in range(4))

    for draw in (fill, several, whole):
        found = play_at_random(env, tasks, draw)
        assert not any(episode.success for episode in found)
        assert sum(episode.reward for episode in found) < 0
    for player in ("", "hello", "0 0 0", "1 1 0"):
        for task in tasks[:30]:
            episode = play(env, task, lambda turn, player=player: player)
            assert episode.truncated and not episode.success and episode.reward < 0


def test_filling_and_emptying_earns_nothing() -> None:
    for task in make_tasks(size=30):
        clues = parse_grid(task.metadata["board"])
        (solution,) = solutions(clues)
        row, column = next((r, c) for r in range(4) for c in range(4) if not clues[r][c])
        pair = [f"{row + 1} {column + 1} {solution[row][column]}", f"{row + 1} {column + 1} 0"]
        episode = play(SudokuEnv([task]), task, lambda turn, pair=pair: pair[turn % 2])
        assert episode.reward == pytest.approx(-0.06) and episode.truncated


@pytest.mark.parametrize("action_format", ["fills", "grid"])
def test_nothing_in_the_prompt_can_be_copied_for_reward(action_format: Any) -> None:
    env = start(action_format=action_format)
    question = env.reset()[0]
    for text in (question, "\n".join(BOARD), *question.split(". "), *BOARD):
        env.reset()
        assert env.step(text)[1] < 0


@pytest.mark.parametrize(
    ("text", "fills"),
    [
        ("1 2 3", [((0, 1), 3)]),
        (" 1  2 3 ;\n 2 2 0 ;", [((0, 1), 3), ((1, 1), 0)]),
        ("1,2,3", None),
        ("1 2", None),
        ("1 2 3 4", None),
        ("0 1 1", None),
        ("1 2 3;;", None),
        ("1 2 +3", None),
        ("(1, 2, 3)", None),
    ],
)
def test_fills_are_read_literally(text: str, fills: Any) -> None:
    assert read_fills(text, 4) == fills


@pytest.mark.parametrize(
    "text", ["1234", "1234\n3412\n2143\n432", "1234\n3412\n2143\n432.", "1" * 16, "[[1]]"]
)
def test_whole_grids_are_read_literally(text: str) -> None:
    assert read_whole(text, 4) is None
    assert read_whole("1 2 3 4\n3412\n 2143\n4321\n", 4) == read_whole(WHOLE, 4)


def test_tasks_are_disjoint_by_their_solutions() -> None:
    splits = {split: make_tasks(split=split, size=40) for split in ("train", "validation", "test")}  # type: ignore[arg-type]
    solved = [
        {tuple(write_grid(solutions(parse_grid(task.metadata["board"]))[0])) for task in tasks}
        for tasks in splits.values()
    ]
    assert not solved[0] & solved[1] and not solved[0] & solved[2] and not solved[1] & solved[2]


@pytest.mark.parametrize(
    "board", [["1234", "3412", "2143", "4321"], ["...."] * 4, ["12..", "...3", "...4", "...."]]
)
def test_puzzles_without_one_solution_are_refused(board: list[str]) -> None:
    with pytest.raises(ValueError, match="must have empty cells and exactly one solution"):
        start().reset(options={"task": Task("x", "q", metadata={"board": board})})


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="action_format must be 'fills' or 'grid'"):
        start(action_format="words")


def test_keeps_the_contracts() -> None:
    check_contracts("drmas/Sudoku-v0", ["1 1 1", "2 2 2", "hm"], size=2)
    check_clones(start(), TASK, ["4 3 1", "", "4 3 0", "4 3 2; 4 4 1"])
    check_team(SingleTeam(start(), on_invalid="continue"))
