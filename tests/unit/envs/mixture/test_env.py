"""A mixture plays every task by the rules of its part, and keeps parts apart."""

from __future__ import annotations

import pytest

from drmas_pl.agents.tool_planner import ToolPlannerTeam
from drmas_pl.data.splits import check_disjoint
from drmas_pl.envs.math import MathEnv
from drmas_pl.envs.mixture import MixtureEnv, mixed_tasks
from drmas_pl.envs.plan_path import PlanPathEnv
from drmas_pl.envs.plan_path import make_tasks as grids
from drmas_pl.envs.sudoku import SudokuEnv
from drmas_pl.envs.sudoku import make_tasks as sudokus
from drmas_pl.errors import EnvironmentFault
from drmas_pl.testing.conformance import check_env
from drmas_pl.types import Task

PATH = Task("path", "?", metadata={"board": ["A.G"]})
SQUARE = Task("square", "?", metadata={"board": ["1.34", "3412", "2143", "4321"]})


def make(**settings: int) -> MixtureEnv:
    parts = {"path": PlanPathEnv([PATH], max_turns=3, **settings), "square": SudokuEnv([SQUARE], max_turns=5)}
    return MixtureEnv(parts)


def test_each_part_plays_pays_and_ends_by_its_own_rules() -> None:
    env = make()
    path, square = env.tasks
    assert (path.id, path.data_source, square.data_source) == ("path/path", "path", "square")
    question, _ = env.reset(options={"task": path})
    assert question.endswith("A.G") and env.max_turns == 3
    _, reward, terminated, _, info = env.step("RR")
    assert reward == pytest.approx(1 + 0.5 + 1 - 0.02) and terminated and info["success"]
    assert info["metrics"]["shortest"] == 1.0
    env.reset(options={"task": square})
    assert env.max_turns == 5 and isinstance(env.playing, SudokuEnv)
    _, reward, terminated, _, info = env.step("1 2 2")
    assert reward == pytest.approx(1 + 0.5 - 0.01) and info["success"] and "shortest" not in info["metrics"]


def test_a_limit_of_a_part_truncates() -> None:
    env = make()
    env.reset(options={"task": env.tasks[0]})
    ends = [env.step("L")[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_clones_play_on_their_own() -> None:
    env = make()
    env.reset(options={"task": env.tasks[0]})
    twin = env.clone()
    twin.step("RR")
    assert env.playing is not twin.playing and env.step("R")[2] is False
    assert env.parts["path"].task is None


def test_a_team_sees_the_part_that_plays() -> None:
    team = ToolPlannerTeam(make())
    for task in team.env.tasks:  # type: ignore[attr-defined]
        team.reset(options={"task": task})
        assert team.unwrapped is team.env.unwrapped.playing  # type: ignore[attr-defined]
        assert team.turns_left() == {"path": 3, "square": 5}[task.data_source]
        team.step("<proposal>RR</proposal>")
        assert team.history[-1].text.startswith("Solved." if task.data_source == "path" else "Not executed")


def test_metrics_of_parts_count_where_they_exist() -> None:
    declared = make().metric_info
    assert declared["shortest"].conditional and declared["right_cells"].conditional


def test_splits_of_parts_stay_apart() -> None:
    splits = [
        mixed_tasks({"a": grids(split=split, size=20), "b": sudokus(split=split, size=10)})
        for split in ("train", "validation", "test")
    ]
    check_disjoint(splits[0], splits[1], test=splits[2])
    assert [task.data_source for task in splits[0]] == ["a"] * 20 + ["b"] * 10


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="parts must name at least one environment"):
        MixtureEnv({})
    with pytest.raises(EnvironmentFault, match=r"names no part of the mixture \(path, square\), got None"):
        make().reset(options={"task": PATH})


def test_keeps_the_contract() -> None:
    check_env(make(), actions=["R", "L", "1 2 2"])


def test_tasks_of_a_part_keep_their_own_data_source() -> None:
    sums = MathEnv([Task("s", "1 + 1 =", ("2",), data_source="sums")])
    env = MixtureEnv({"math": sums})
    env.reset(options={"task": env.tasks[0]})
    assert env.playing.task == sums.tasks[0].__class__("math/s", "1 + 1 =", ("2",), data_source="sums")
    env.close()
