"""What puzzle environments share: the shaped reward telescopes, and actions are found in what a team says."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from drmas_pl.envs.plan_path import PlanPathEnv
from drmas_pl.envs.planning import PlanningEnv, read_action
from drmas_pl.envs.sokoban import SokobanEnv
from drmas_pl.envs.sudoku import SudokuEnv


def moves(source: Random) -> str:
    return "".join(source.choices("UDLR", k=source.randint(1, 5)))


def fills(source: Random) -> str:
    return "; ".join(" ".join(source.choices("1234", k=3)) for _ in range(source.randint(1, 4)))


@pytest.mark.parametrize(("kind", "draw"), [(PlanPathEnv, moves), (SokobanEnv, moves), (SudokuEnv, fills)])
def test_shaping_pays_the_last_potential_minus_the_first_whatever_the_way(kind: Any, draw: Any) -> None:
    env: PlanningEnv[Any] = kind(size=20, step_cost=0.0, shaping=2.0)
    for seed in range(60):
        source = Random(seed)
        env.reset(seed=seed)
        first, total, over, success = env.potential(env.state), 0.0, False, False
        while not over:
            _, reward, terminated, truncated, info = env.step(draw(source))
            total, over, success = total + reward, terminated or truncated, info["success"]
        if not success:
            assert total == pytest.approx(2.0 * (env.potential(env.state) - first))


@pytest.mark.parametrize("kind", [PlanPathEnv, SokobanEnv, SudokuEnv])
def test_the_potential_is_highest_where_the_puzzle_is_solved(kind: Any) -> None:
    env: PlanningEnv[Any] = kind(size=20)
    for seed in range(20):
        env.reset(seed=seed)
        assert not env.solved(env.state) and -1 <= env.potential(env.state) <= 0


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("U R", "U R"),
        (r"U \boxed{U R} D", "U R"),
        (r"\boxed{U}\boxed{ D }", "D"),
        (r"\boxed{U", ""),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_box_counts(text: str, action: str) -> None:
    assert read_action(text) == action
