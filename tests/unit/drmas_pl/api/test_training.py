"""Training from Python in one call: what it takes, what it returns, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import drmas_pl
from drmas_pl.agents.single import SingleTeam, SolutionActor
from drmas_pl.errors import ConfigError, DataError
from drmas_pl.optim import OptimizerSettings
from drmas_pl.rewards.question_env import QuestionEnv
from drmas_pl.types import Task
from tests.helpers.toy import EvenEnv, Speaker, WriterEditor, make_tasks

MODEL = "random:llama-tiny"
SMALL: dict[str, Any] = {"model": MODEL, "iterations": 1, "tasks_per_iteration": 2, "samples": 2}


def length(text: str, references: Any) -> float:
    return len(text) / 100


async def program(task: Any, agents: Any) -> None: ...


def actor() -> SolutionActor:
    return SolutionActor("actor", template="compact", sampling={"max_new_tokens": 4})


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> drmas_pl.TrainingResult:
    tasks = [{"question": f"{n} + 1 =", "answer": str(n + 1)} for n in range(12)]
    return drmas_pl.train(
        SingleTeam,
        tasks,
        agents=[actor()],
        reward=length,
        output_dir=tmp_path_factory.mktemp("run") / "run",
        record=("train", "validation"),
        optimizer=OptimizerSettings(lr=1e-3),
        **SMALL,
    )


def test_a_run_leaves_curves_and_checkpoints(result: drmas_pl.TrainingResult) -> None:
    assert result.state.iteration == 1 and result.summary["iterations"] == 1
    assert [place for place, _ in result.curves["validation/success"]] == [0, 1]
    assert [place for place, _ in result.curves["train/reward"]] == [1]
    assert result.best_checkpoint == result.last_checkpoint == result.folder / "checkpoints/iteration-000001"
    assert (result.folder / "checkpoints/iteration-000001/agents/actor").is_dir()
    assert repr(result).startswith("TrainingResult(1 iterations, success 0.000 -> 0.000, folder=")


def test_every_tenth_task_is_kept_for_validation(result: drmas_pl.TrainingResult) -> None:
    played = {trajectory.task.id for trajectory in result.trajectories()}
    trained = {trajectory.task.id for trajectory in result.trajectories("train")}
    assert len(played) == 2 and len(trained) == 2 and not played & trained


def test_turns_are_a_table(result: drmas_pl.TrainingResult) -> None:
    pytest.importorskip("pandas")
    table = result.frame("train")
    assert len(table) == 4 and set(table["agent"]) == {"actor"}
    first = result.trajectories("train")[0]
    row = table.iloc[0]
    assert (row["task"], row["text"], row["team_reward"]) == (
        first.task.id,
        first.turns[0].text,
        first.reward,
    )
    assert row["response_tokens"] == len(first.turns[0].response_ids)


def test_a_table_without_pandas_names_the_remedy(
    result: drmas_pl.TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas, or use trajectories"):
        result.frame()


def test_the_team_answers_a_question_with_its_trained_weights(result: drmas_pl.TrainingResult) -> None:
    told = result.chat("2 + 2 =")
    assert [turn.agent for turn in told.turns] == ["actor"] and told.mode == "greedy"
    assert told == result.chat("2 + 2 =", seed=3)
    assert told.turns[0].weights_version == 0 and result.agents["actor"].policy is not None
    assert result.chat("2 + 2 =", greedy=False).mode == "sampled"


def test_a_team_with_an_environment_of_its_own_is_taken_as_it_is(tmp_path: Path) -> None:
    tasks = make_tasks(3)
    result = drmas_pl.train(
        WriterEditor(EvenEnv(tasks)),
        tasks,
        validation=make_tasks(5)[3:],
        agents={"writer": Speaker, "editor": Speaker},
        sampling={"max_new_tokens": 3},
        frozen=("editor",),
        output_dir=tmp_path / "run",
        **{**SMALL, "tasks_per_iteration": 9},
    )
    played = {trajectory.task.id for trajectory in result.trajectories()}
    assert played == {task.id for task in make_tasks(5)[3:]}
    updated = {name.split("/")[0] for name in result.curves if name.endswith("/grad_norm")}
    assert "frozen" not in updated and updated
    assert list(result.agents) == ["writer", "editor"]


def test_a_single_task_stands_in_both_splits(tmp_path: Path) -> None:
    task = Task("t", "1 + 1 =", ("2",))
    result = drmas_pl.train(
        SingleTeam, [task], agents=[actor()], reward=length, output_dir=tmp_path / "run", **SMALL
    )
    assert {trajectory.task.id for trajectory in result.trajectories()} == {"t"}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"reward": None}, ConfigError, r"^train needs reward=, .*team=SingleTeam\(env\)"),
        ({"team": SingleTeam(QuestionEnv(length))}, ConfigError, "^reward pays teams that are given as a class"),
        ({"team": "single"}, TypeError, r"^team must be a team, a class .* got 'single' \(str\)$"),
        ({"team": program}, ConfigError, "^reward pays teams that are given as a class; a program gives"),
        ({"agents": {"solver": SolutionActor}}, ConfigError, r"^agents must be exactly \['actor'\] .*\['solver'\]"),
        ({"frozen": ["nobody"]}, ConfigError, r"^frozen names \['nobody'\]; the team has \['actor'\]$"),
        ({"model": {}}, ConfigError, r"^model must name one for each agent, got none for \['actor'\]$"),
        ({"model": {"x": MODEL}}, ConfigError, r"^model names \['x'\]"),
        ({"tasks": None}, ConfigError, "^tasks must be given"),
        ({"tasks": 3}, DataError, "^train must be a file"),
        ({"tasks_per_iteration": 0}, ValueError, "^tasks_per_iteration must be at least 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    changed: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    task = Task("t", "1 + 1 =", ("2",))
    given = {"team": SingleTeam, "tasks": [task], "agents": [actor()], "reward": length, **SMALL, **changed}
    with pytest.raises(error, match=message):
        drmas_pl.train(**given, output_dir=tmp_path / "run")
