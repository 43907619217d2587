"""Path planning: what play earns, how episodes end, what is shown."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.agents.single import SingleTeam, SolutionActor
from drmas_pl.envs.plan_path import PlanPathEnv, make_tasks
from drmas_pl.envs.plan_path.maze import parse_maze, shortest_path
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Observation, Task
from tests.helpers.audits import check_clones, check_contracts, play, play_at_random

BOARD = ["A..", ".#.", "..G"]
TASK = Task("t", "grid", metadata={"board": BOARD})


def start(**settings: Any) -> PlanPathEnv:
    env = PlanPathEnv([TASK], **settings)
    env.reset()
    return env


def test_a_shortest_path_earns_everything() -> None:
    observation, reward, terminated, truncated, info = start().step("D D R R")
    # 1 for the goal, 0.5 for the shortest path, 1 for the whole potential, 4 moves of 0.01
    assert reward == pytest.approx(1 + 0.5 + 1 - 0.04)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert info["metrics"] == {"moves": 4.0, "illegal_actions": 0.0, "shortest": 1.0}
    assert observation == "Solved.\n...\n.#.\n..A"


def test_a_detour_loses_the_bonus_and_pays_for_its_moves() -> None:
    env = start()
    first = env.step("R L")[1]
    assert first == pytest.approx(-0.02)
    _, reward, _, _, info = env.step(r"then \boxed{D D R R}")
    assert first + reward == pytest.approx(1 + 1 - 0.06)
    assert info["success"] and info["metrics"]["shortest"] == 0.0


@pytest.mark.parametrize(
    ("action", "reward", "shown"),
    [
        ("U D", -0.01, "Move 1 (U) is blocked"),
        ("D R D", 0.25 - 0.02, "Move 2 (R) is blocked"),
        ("down", -0.01, "Not executed"),
        ("", -0.01, "Not executed"),
        ("D", 0.25 - 0.01, "Moves made: 1."),
    ],
)
def test_a_blocked_or_unreadable_action_stops(action: str, reward: float, shown: str) -> None:
    observation, found, terminated, truncated, info = start().step(action)
    assert found == pytest.approx(reward) and observation.startswith(shown)
    assert not terminated and not truncated
    assert info["metrics"]["illegal_actions"] == float(action != "D")


@pytest.mark.parametrize("settings", [{"max_turns": 2}, {"max_moves": 4}])
def test_a_limit_truncates_and_is_no_success(settings: dict[str, int]) -> None:
    env = start(**settings)
    assert env.step("R L")[2:4] == (False, False)
    _, _, terminated, truncated, info = env.step("R L")
    assert (terminated, truncated, info["success"]) == (False, True, False)


def test_moves_beyond_the_limit_are_not_played() -> None:
    _, _, terminated, truncated, info = start(max_moves=3).step("D D R R")
    assert (terminated, truncated, info["success"], info["metrics"]["moves"]) == (False, True, False, 3.0)


def test_settings_count() -> None:
    assert start(step_cost=0.5).step("R L")[1] == pytest.approx(-1.0)
    assert start(shaping=0.0, step_cost=0.0).step("D")[1] == 0.0
    assert start(shortest_bonus=0.0, step_cost=0.0, shaping=0.0).step("DDRR")[1] == 1.0
    assert PlanPathEnv([TASK], show_rules=False).reset()[0] == "\n".join(BOARD)
    assert PlanPathEnv([TASK]).reset()[0].endswith("\n".join(BOARD))
    env = PlanPathEnv(size=3, height=5, width=4, min_distance=2, max_distance=4, obstacles=0.0)
    boards = [task.metadata["board"] for task in env.tasks]
    assert len(boards) == 3 and all((len(board), len(board[0])) == (5, 4) for board in boards)


def test_a_preview_changes_nothing() -> None:
    env = start()
    assert env.preview("DDRR").success
    assert env.preview("D").observation == env.step("D")[0]


def test_simple_players_solve_nothing_and_earn_nothing() -> None:
    tasks = make_tasks(size=150, seed=1)
    env = PlanPathEnv(tasks)
    for moves in (1, 4):
        found = play_at_random(
            env, tasks, lambda source, moves=moves: "".join(source.choices("UDLR", k=moves))
        )
        assert sum(episode.success for episode in found) <= 0.02 * len(tasks)
        assert sum(episode.reward for episode in found) < 0
    for player in ("U D", "R L", "L R R L", "", "U" * 30, "hello"):
        for task in tasks[:30]:
            episode = play(env, task, lambda turn, player=player: player)
            assert episode.truncated and not episode.success
            assert episode.reward < 0 or player == "U" * 30


def test_going_to_and_fro_over_turns_earns_nothing() -> None:
    for task in make_tasks(size=30):
        env = PlanPathEnv([task], max_turns=4)
        for there, back in ("UD", "LR", "DU", "RL"):
            env.reset(options={"task": task})
            if "blocked" in env.preview(there).observation:
                continue
            episode = play(env, task, lambda turn, pair=(there, back): pair[turn % 2])
            assert episode.reward == pytest.approx(-0.04) and episode.truncated


@pytest.mark.parametrize("template", sorted(SolutionActor.templates))
def test_nothing_in_the_prompt_can_be_copied_for_reward(template: str) -> None:
    for task in make_tasks(size=20):
        env = PlanPathEnv()
        question = env.reset(options={"task": task})[0]
        prompt = SolutionActor.templates[template].messages(Observation(question))[0]["content"]
        for text in (prompt, question, *question.split(". "), r"\boxed{}"):
            env.reset(options={"task": task})
            assert env.step(text)[1] < 0


def test_tasks_are_solvable_disjoint_and_told_by_their_seed() -> None:
    splits = {split: make_tasks(split=split, size=40) for split in ("train", "validation", "test")}  # type: ignore[arg-type]
    questions = [task.question for tasks in splits.values() for task in tasks]
    assert len(set(questions)) == 120
    for task in splits["test"]:
        assert play(PlanPathEnv(), task, lambda turn, task=task: solution(task)).reward > 1.5
    assert make_tasks(size=5) == make_tasks(size=5) != make_tasks(size=5, seed=1)


def solution(task: Task) -> str:
    return " ".join(shortest_path(parse_maze(task.metadata["board"])) or ())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"max_moves": 0}, "max_moves must be at least 1"),
        ({"step_cost": -1}, "step_cost must be at least 0"),
        ({"shaping": -1}, "shaping must be at least 0"),
        ({"shortest_bonus": -1}, "shortest_bonus must be at least 0"),
        ({"render_mode": "human"}, "render_mode must be None, 'ansi' or 'rgb_array'"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlanPathEnv([TASK], **settings)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, r"needs metadata\['board'\], a list of lines"),
        ({"board": ["A"]}, "must be a rectangle"),
        ({"board": ["A#G"]}, "no path leads to the goal"),
    ],
)
def test_foreign_tasks_are_refused(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlanPathEnv([TASK]).reset(options={"task": Task("x", "q", metadata=metadata)})


def test_renders() -> None:
    assert start().render() is None
    assert start(render_mode="ansi").render() == "\n".join(BOARD)
    assert start(render_mode="rgb_array").render().shape == (48, 48, 3)
    with pytest.raises(RuntimeError, match="before reset"):
        PlanPathEnv([TASK], render_mode="ansi").render()


def test_keeps_the_contracts() -> None:
    check_contracts("drmas/PlanPath-v0", ["R", "D", "hm"], size=2)
    check_clones(start(), TASK, ["R", "", "L", "D D R R"])


@pytest.mark.parametrize("on_invalid", ["end", "continue"])
def test_plays_with_a_team_of_one(on_invalid: Any) -> None:
    check_team(SingleTeam(PlanPathEnv([TASK]), on_invalid=on_invalid))
    team = SingleTeam(PlanPathEnv([TASK]))
    team.reset()
    team.step(r"\boxed{D}")
    shown = SolutionActor.templates["full"].messages(team.observe("actor"))[0]["content"]
    assert "After your answer number 1:\nMoves made: 1.\n...\nA#.\n..G\n\nReason" in shown
    assert team.step(r"\boxed{D R R}")[4]["success"]
