"""The comparison of one agent, teams, parallel and tree sampling."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drmas_pl.types import Task, Trajectory
from scripts.stronger_mas import ARMS, TokenBudget, main, table
from tests.helpers.toy import make_turn

SMALL = [
    "env.height=4",
    "env.width=4",
    "env.min_distance=2",
    "env.max_distance=5",
    "model=tiny_random",
    "model.max_new_tokens=4",
    "data.limit_validation=2",
]


def record(arm: str, seed: int, last: float) -> dict[str, Any]:
    curve = [(0, 0.1), (80, 0.3), (120, last)]
    return {"env": "sudoku", "arm": arm, "seed": seed, "tokens": 100, "curves": {"validation": curve}}


def test_the_table_is_read_off_at_equal_numbers_of_tokens() -> None:
    text = table([record("single", 0, 0.5), record("single", 1, 0.7)], curve="validation")
    # 50 of 80 tokens: 0.1 + 0.2·5/8; 100 tokens: half-way from 0.3 to 0.5 or to 0.7
    assert text.splitlines()[2] == (
        "| sudoku | one agent, GRPO | 2 | 10 [10, 10] | 22 [22, 22] | 45 [40, 50] | 35 [30, 40] |"
    )


def test_the_budget_counts_candidates_that_were_not_played(tmp_path: Path) -> None:
    turns = [make_turn("tool", (7, 8), candidate=number) for number in range(3)]
    tree = Trajectory(Task("t", "q"), 0, (turns[1],), 0.0, "terminated", candidates=tuple(turns))
    trainer: Any = SimpleNamespace(folder=SimpleNamespace(path=tmp_path), should_stop=False)
    budget = TokenBudget(10)
    for _ in range(2):
        budget.on_rollout_end(trainer, None, SimpleNamespace(trajectories=[tree]), 0)
        budget.on_train_batch_end(trainer, None, None, None, 0)
    assert json.loads((tmp_path / "tokens.json").read_text()) == [0, 6, 12]
    assert trainer.should_stop


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_every_way_to_train_runs(tmp_path: Path, arm: str) -> None:
    words = ["--envs", "plan_path", "--arms", arm, "--seeds", "3", "--tokens", "50", "--tasks", "1"]
    assert main(["--output", str(tmp_path), *words, *SMALL]) == 0
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert found["iterations"] >= 1
    assert found["curves"]["validation"][0][0] == 0
    assert main(["--output", str(tmp_path), "--report"]) == 0
    assert ARMS[arm].title in (tmp_path / "table.md").read_text()
