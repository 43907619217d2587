"""Puzzles and games from the command line, without a data file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drmas_pl.tools.train import main

SHORT = [
    "model=tiny_random",
    "model.max_new_tokens=8",
    "trainer.max_iterations=1",
    "data.tasks_per_iteration=2",
    "rollout.samples=2",
    "evaluation.samples=1",
    "logger=none",
    "data.train.size=6",
    "data.validation.size=2",
    "data.test.size=2",
    "evaluation.greedy=false",
]


@pytest.mark.parametrize(
    ("env", "agents"),
    [
        ("plan_path", "tool_planner"),
        ("plan_path", "single"),
        ("sokoban", "tool_planner"),
        ("sudoku", "tool_planner"),
    ],
)
def test_every_puzzle_trains_from_the_command_line(
    env: str, agents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"+env={env}", f"+agents={agents}", *SHORT, "agents.on_invalid=continue", "output_dir=run"]
    assert main(words) == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    logged = {name: value for line in lines for name, value in json.loads(line).items()}
    # an untrained model says nothing of use, so that every episode is played to its limit of 6 turns
    assert (logged["train/success"], logged["train/truncated"], logged["train/failed"]) == (0.0, 1.0, 0.0)
    assert logged["train/illegal_actions"] == 6.0 and logged["train/reward"] == pytest.approx(-0.06)
