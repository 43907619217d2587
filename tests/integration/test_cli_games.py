"""Puzzles and games from the command line, without a data file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drmas_pl.data.recorded import read_trajectories
from drmas_pl.tools.evaluate import main as evaluate
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
        pytest.param("plan_path", "single", marks=pytest.mark.slow),
        pytest.param("sokoban", "tool_planner", marks=pytest.mark.slow),
        pytest.param("sudoku", "tool_planner", marks=pytest.mark.slow),
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
    # an untrained model says nothing of use, so that every episode is played to its limit of 4 turns
    assert (logged["train/success"], logged["train/truncated"], logged["train/failed"]) == (0.0, 1.0, 0.0)
    assert logged["train/illegal_actions"] == 4.0 and logged["train/reward"] == pytest.approx(-0.04)


def test_a_policy_plays_against_itself_and_a_scripted_player_tests_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["+env=kuhn", "+agents=self_play", *SHORT, "output_dir=run"]) == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    logged = {name: value for line in lines for name, value in json.loads(line).items()}
    # an untrained model says nothing of use, so that the first player loses at once
    assert (logged["train/reward"], logged["train/illegal_moves"], logged["train/failed"]) == (0.0, 1.0, 0.0)
    words = ["checkpoint=run", "env.opponent=optimal", "env.opponent_player=first", "output=record.json"]
    assert evaluate([*words, "evaluation.samples=1", "evaluation.greedy=false"]) == 0
    record = json.loads((tmp_path / "record.json").read_text())
    # the reward is the first player's score, success and score are those of the player that the model has
    found = {
        name: record["metrics"][f"test/{name}"] for name in ("second/calls", "reward", "success", "score")
    }
    assert found == {"second/calls": 1.0, "reward": 1.0, "success": 0.0, "score": 0.0}


@pytest.mark.parametrize(
    "words",
    [
        ("+env=rock_paper_scissors",),
        pytest.param(
            ("+env=matching_pennies", "advantage=marshal", "credit=return_to_go", "sharing=per_agent"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_players_choose_at_once_and_are_paid_by_name(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    again = ("trainer.record=[train]", "output_dir=run", "env.rounds=2")
    assert main([*words, "+agents=self_play", *SHORT, *again]) == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    logged = {name: value for line in lines for name, value in json.loads(line).items()}
    assert (logged["train/reward"], logged["train/failed"], logged["train/first/calls"]) == (0.0, 0.0, 2.0)
    assert logged["train/first/reward"] == -logged["train/second/reward"] == logged["train/payoff"]
    (file,) = (tmp_path / "run/trajectories").glob("train-*.jsonl")
    for trajectory in read_trajectories(file):
        assert sum(trajectory.rewards.values()) == 0 and set(trajectory.rewards) == {"first", "second"}
        assert [(turn.agent, turn.move, turn.moved_with) for turn in trajectory.turns] == [
            ("first", 0, ("second",)),
            ("second", 0, ("first",)),
            ("first", 1, ("second",)),
            ("second", 1, ("first",)),
        ]


def test_a_debate_learns_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["+env=math", "+agents=debate", "agents.answer_reward=0.5", "data.limit_validation=2"]
    short = [word for word in SHORT if not word.startswith(("data.train", "data.val", "data.test", "model"))]
    assert main([*words, *short, "rollout.samples=4", "trainer.record=[train]", "output_dir=run"]) == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    logged = {name: value for line in lines for name, value in json.loads(line).items()}
    assert (logged["train/turns"], logged["train/failed"]) == (6.0, 0.0)
    assert all(logged[f"train/debater_{number}/grad_norm"] > 0 for number in (1, 2, 3))
    # the model that ships knows the form
    assert logged["train/debater_1/valid"] > 0.8 and logged["train/agreement"] > 1 / 3
    (file,) = (tmp_path / "run/trajectories").glob("train-*.jsonl")
    for trajectory in read_trajectories(file):
        assert [turn.move for turn in trajectory.turns] == [0, 0, 0, 1, 1, 1]
        first, second = trajectory.turns[0], trajectory.turns[3]
        assert (first.moved_with, second.agent_index) == (("debater_2", "debater_3"), 1)
