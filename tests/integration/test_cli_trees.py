"""AT-GRPO from the command line: trees by default, for every way of sharing weights, with agents that never learn, and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drmas_pl.data.recorded import read_trajectories
from drmas_pl.tools.export import main as export
from drmas_pl.tools.train import main
from drmas_pl.types import Trajectory
from tests.helpers.toy import TEAM_WORDS

WORDS = [
    "+env=custom",
    "env._target_=tests.integration.test_cli_train.ToyEnv",
    *TEAM_WORDS,
    "model=tiny_random",
    "model.max_new_tokens=3",
    "advantage=at_grpo",
    "rollout.candidates=4",
    "data.tasks_per_iteration=2",
    "trainer.record=[train]",
]


def train(folder: Path, *words: str, iterations: int = 1) -> list[Trajectory]:
    """Run, and return what the last iteration was trained on."""
    assert main([*WORDS, f"output_dir={folder}", f"trainer.max_iterations={iterations}", *words]) == 0
    return read_trajectories(folder / f"trajectories/train-{iterations:06d}.jsonl")


@pytest.mark.parametrize("sharing", ["shared", "per_agent", "lora"])
def test_every_candidate_trains_whoever_shares_weights(
    tmp_path: Path, sharing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    played = train(tmp_path / "run", f"sharing={sharing}")
    assert "2 tasks x 1 trees of 4 candidates" in capsys.readouterr().out
    assert len(played) == 2
    for trajectory in played:
        assert len(trajectory.candidates) == 4 * len(trajectory.turns)
        assert all(turn.advantage is not None for turn in trajectory.candidates)
        for turn in trajectory.turns:
            (same,) = [
                one
                for one in trajectory.candidates
                if (one.index, one.candidate) == (turn.index, turn.candidate)
            ]
            assert (turn.text, turn.advantage) == (same.text, same.advantage)
    logged = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    (record,) = [one for one in logged if "train/reward" in one]
    assert record["train/editor/no_signal"] < 1


def test_agents_that_never_learn_have_no_candidates(tmp_path: Path) -> None:
    played = train(
        tmp_path / "run", "agents.roles.writer.trainable=false", "credit.alpha_by_agent.editor=0.5"
    )
    for trajectory in played:
        assert trajectory.turns[0].candidate is None
        assert len(trajectory.candidates) == 4 * (len(trajectory.turns) - 1)


def test_a_resumed_run_grows_the_same_trees(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", iterations=2)
    train(tmp_path / "parts", "trainer.checkpoint_every=1")
    rest = train(tmp_path / "parts", f"resume={tmp_path / 'parts'}", iterations=2)
    assert rest == whole


def test_trees_are_played_ahead_too(tmp_path: Path) -> None:
    played = train(tmp_path / "run", "rollout.max_staleness=1", "engine.copy=true", iterations=2)
    assert all(len(trajectory.candidates) == 4 * len(trajectory.turns) for trajectory in played)


def test_whole_trees_become_data_for_fine_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rollout.select=all", "rollout.depth=2", "trainer.record_prompts=true"]
    played = train(tmp_path / "run", *words)
    assert all(len(one.candidates) >= 4 + 4 * 4 for one in played)
    assert export([str(tmp_path / "run"), "--preferences", "--output", str(tmp_path / "out")]) == 0
    assert "preferences of editor" in capsys.readouterr().out
    pair = json.loads((tmp_path / "out/editor-preferences.jsonl").read_text().splitlines()[0])
    assert set(pair) == {"prompt", "chosen", "rejected"}
    worth = {
        turn.text: turn.reward for one in played for turn in one.candidates if turn.prompt == pair["prompt"]
    }
    assert worth[pair["chosen"]] > 0.5 >= worth[pair["rejected"]]
    train(tmp_path / "plain", "rollout=default", "rollout.samples=2")
    assert export([str(tmp_path / "plain"), "--preferences", "--output", str(tmp_path / "no")]) == 2
    assert "holds no recorded trees; a run with rollout=tree" in capsys.readouterr().err


def test_without_trees_the_method_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (played,) = {
        len(one.candidates) for one in train(tmp_path / "run", "rollout=default", "rollout.samples=2")
    }
    assert played == 0
    assert "advantage=at_grpo compares responses to one and the same prompt" in capsys.readouterr().err
