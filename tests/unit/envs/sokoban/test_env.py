"""Sokoban: what play earns, how episodes end, what is shown."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.agents.single import SingleTeam
from drmas_pl.envs.sokoban import SokobanEnv, make_tasks
from drmas_pl.envs.sokoban.warehouse import parse_warehouse, shortest_solution
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Task
from tests.helpers.audits import check_clones, check_contracts, play, play_at_random

BOARD = ["######", "#@---#", "#-$-.#", "#----#", "######"]
TASK = Task("t", "level", metadata={"board": BOARD})


def start(**settings: Any) -> SokobanEnv:
    env = SokobanEnv([TASK], **settings)
    env.reset()
    return env


def test_a_solution_earns_one_and_the_potential() -> None:
    observation, reward, terminated, truncated, info = start().step("D R R")
    # the largest distance in a level of 5 x 6 cells is 4 + 5, and the box was 2 away from the goal
    assert reward == pytest.approx(1 + 2 / 9 - 0.03)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert info["metrics"] == {"moves": 3.0, "illegal_actions": 0.0, "deadlocked": 0.0}
    assert observation.endswith("#--@*#\n#----#\n######") and observation.startswith("Solved.")


@pytest.mark.parametrize(
    ("action", "reward", "shown"),
    [
        ("U D", -0.01, "Move 1 (U) is blocked"),
        ("push", -0.01, "Not executed"),
        ("D R", 1 / 9 - 0.02, "Moves made: 2."),
        ("R D", -1 / 9 - 0.02, "Moves made: 2."),
    ],
)
def test_one_action(action: str, reward: float, shown: str) -> None:
    observation, found, terminated, truncated, _ = start().step(action)
    assert found == pytest.approx(reward) and observation.startswith(shown)
    assert not terminated and not truncated


def test_a_deadlock_is_counted_and_ends_the_episode_where_it_should() -> None:
    # the box is pushed to the wall below, away from the goal's row
    _, _, terminated, _, info = start().step("R D")
    assert not terminated and info["metrics"]["deadlocked"] == 1.0
    _, reward, terminated, truncated, info = start(on_deadlock="end").step("R D")
    assert (terminated, truncated, info["success"]) == (True, False, False) and reward < 0


@pytest.mark.parametrize("settings", [{"max_turns": 2}, {"max_moves": 4}])
def test_a_limit_truncates_and_is_no_success(settings: dict[str, int]) -> None:
    env = start(**settings)
    assert env.step("D U")[2:4] == (False, False)
    _, _, terminated, truncated, info = env.step("D U")
    assert (terminated, truncated, info["success"]) == (False, True, False)


def test_settings_reach_the_generator() -> None:
    env = SokobanEnv(size=2, height=7, width=8, boxes=2, walls=0.0, min_solution=3, max_solution=60)
    boards = [task.metadata["board"] for task in env.tasks]
    assert len(boards) == 2 and all((len(board), len(board[0])) == (7, 8) for board in boards)
    assert all("".join(board).count("$") + "".join(board).count("*") == 2 for board in boards)
    assert all("#" not in line[1:-1] for board in boards for line in board[1:-1])
    (easy,) = make_tasks(size=1, min_solution=1, max_solution=2)
    assert len(shortest_solution(parse_warehouse(easy.metadata["board"])) or ()) <= 2


def test_simple_players_solve_nothing_and_earn_nothing() -> None:
    tasks = make_tasks(size=150, seed=1)
    env = SokobanEnv(tasks)
    for moves in (1, 4):
        found = play_at_random(
            env, tasks, lambda source, moves=moves: "".join(source.choices("UDLR", k=moves))
        )
        assert sum(episode.success for episode in found) <= 0.02 * len(tasks)
        assert sum(episode.reward for episode in found) < 0
    for player in ("", "hello", "$", "D D D"):
        for task in tasks[:30]:
            episode = play(env, task, lambda turn, player=player: player)
            assert episode.truncated and not episode.success
            assert episode.reward < 0 or player == "D D D"


def test_going_to_and_fro_earns_nothing() -> None:
    for task in make_tasks(size=30):
        level = parse_warehouse(task.metadata["board"])
        for there, back in ("UD", "LR", "DU", "RL"):
            moved = level.after(there)
            if moved is None or moved.boxes != level.boxes:
                continue
            episode = play(SokobanEnv([task]), task, lambda turn, pair=there + back: pair)
            assert episode.reward == pytest.approx(-0.12) and episode.truncated


def test_nothing_in_the_rules_can_be_copied_for_reward() -> None:
    env = start()
    question = env.reset()[0]
    for text in (question, *question.split(". ")):
        env.reset()
        assert env.step(text)[1] < 0


def test_tasks_are_solvable_and_disjoint() -> None:
    splits = {split: make_tasks(split=split, size=30) for split in ("train", "validation", "test")}  # type: ignore[arg-type]
    assert len({task.question for tasks in splits.values() for task in tasks}) == 90
    layouts = [
        {task.question.translate(str.maketrans("*+@$", "..--")) for task in tasks}
        for tasks in splits.values()
    ]
    assert not layouts[0] & layouts[1] and not layouts[0] & layouts[2] and not layouts[1] & layouts[2]
    for task in splits["test"]:
        moves = " ".join(shortest_solution(parse_warehouse(task.metadata["board"])) or ())
        assert play(SokobanEnv([task]), task, lambda turn, moves=moves: moves).reward > 0.8


@pytest.mark.parametrize(
    ("metadata", "message"),
    [({}, "needs metadata"), ({"board": ["@"]}, "must be a rectangle"), ({"board": ["@*"]}, "already")],
)
def test_foreign_tasks_are_refused(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start().reset(options={"task": Task("x", "q", metadata=metadata)})


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="on_deadlock must be 'continue' or 'end'"):
        start(on_deadlock="stop")


def test_keeps_the_contracts() -> None:
    check_contracts("drmas/Sokoban-v0", ["R", "D", "hm"], size=2)
    check_clones(start(), TASK, ["R", "", "L", "D R R"])
    check_team(SingleTeam(start(), on_invalid="continue"))
