"""What a finished run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drmas_pl.data.recorded import RecordedTurns, read_trajectories
from drmas_pl.trainer.settings import EvaluationSettings
from tests.helpers.runs import run


@pytest.mark.usefixtures("curve")
def test_a_run_leaves_metrics_scores_curve_trajectories_and_checkpoint(tmp_path: Path) -> None:
    trainer = run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "metrics.jsonl",
        "summary.json",
        "plot.png",
        "report.html",
        "trajectories",
        "checkpoints",
    }
    assert [record["iteration"] for record in trainer.folder.read_metrics()] == [0, 1, 2, 3, 4, 4]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["after"] == trainer.state.evaluations[-1]["sampled"] and summary["iterations"] == 4
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "checkpoints" / "last").read_text() == "iteration-000004"


@pytest.mark.parametrize("prompts", [False, True])
def test_a_run_tells_what_was_sampled_what_was_greedy_and_what_it_was_trained_with(
    tmp_path: Path, prompts: bool
) -> None:
    trainer = run(
        tmp_path,
        max_iterations=2,
        record=("train", "validation"),
        record_prompts=prompts,
        evaluation=EvaluationSettings(samples=2),
    )
    validation = read_trajectories(tmp_path / "trajectories/validation-000002.jsonl")
    assert [trajectory.mode for trajectory in validation] == ["sampled"] * 4 + ["greedy"] * 2
    assert {(trajectory.phase, trajectory.iteration) for trajectory in validation} == {("validation", 2)}
    train = read_trajectories(tmp_path / "trajectories/train-000002.jsonl")
    assert {(played.phase, played.mode, played.iteration) for played in train} == {("train", "sampled", 2)}
    logged = next(record for record in trainer.folder.read_metrics() if record.get("iteration") == 2)
    for name, agent in trainer.agents.items():
        turns = RecordedTurns(train, name)
        square = sum(turns[index].advantage ** 2 for index in range(len(turns))) / len(turns)
        assert square == pytest.approx(logged[f"train/{name}/advantage_square"], rel=1e-6)
        for trajectory in (*train, *validation):
            for turn in (turn for turn in trajectory.turns if turn.agent == name):
                assert turn.prompt == (agent.tokenizer.decode(list(turn.prompt_ids)) if prompts else None)
                assert not prompts or trajectory.task.question in turn.prompt
