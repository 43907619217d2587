"""A run that was stopped and resumed is, bit for bit, the run that was not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drmas_pl.algorithms.baseline_estimators import RoleBaseline
from drmas_pl.data.recorded import read_trajectories
from drmas_pl.errors import CheckpointError, ConfigError, FolderInUse
from drmas_pl.optim import OptimizerSettings, named_state
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.schedule import GroupSchedule
from tests.helpers.runs import StopAt, run, same, timeless, weights
from tests.helpers.toy import make_data, make_groups, make_tasks, make_trainer

FAST, SLOW = (
    OptimizerSettings(lr=2e-2, schedule="cosine"),
    OptimizerSettings(lr=5e-3, schedule="cosine", warmup_ratio=0.25),
)
APART = {
    "binding": {"writer": {"optimizer": FAST}, "editor": {"optimizer": SLOW}},
    "update": UpdateSettings(updates_per_iteration=2),
}
SHARED = {
    "sharing": "shared",
    "update": UpdateSettings(updates_per_iteration=2, old_logp="recompute"),
    "optimizer": FAST,
}
VALIDATED = EvaluationSettings(every=3, samples=2, pass_at=(2,))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MultiAgentTrainer:
    """A run of four iterations with nothing special."""
    return run(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def half_way(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped after two of its iterations."""
    folder = tmp_path_factory.mktemp("half")
    run(folder, callbacks=[StopAt(2)])
    return folder


@pytest.fixture
def stopped(half_way: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(half_way, tmp_path / "stopped")


@pytest.mark.parametrize("groups", [APART, SHARED], ids=["per_agent", "shared"])
def test_stopping_and_resuming_changes_nothing(tmp_path: Path, groups: dict[str, Any]) -> None:
    check_resumption(tmp_path, groups, stops=[2])


@pytest.mark.slow
@pytest.mark.parametrize("groups", [APART, SHARED], ids=["per_agent", "shared"])
def test_stopping_after_any_iteration_and_resuming_changes_nothing(
    tmp_path: Path, groups: dict[str, Any]
) -> None:
    check_resumption(tmp_path, groups, stops=range(1, 4))


def check_resumption(tmp_path: Path, groups: dict[str, Any], stops: Iterable[int]) -> None:
    """Compare runs that are stopped and resumed with the one that is not."""
    whole = run(tmp_path / "whole", groups=groups, evaluation=VALIDATED)
    for stop in stops:
        folder = tmp_path / str(stop)
        stopped = run(folder, groups=groups, evaluation=VALIDATED, callbacks=[StopAt(stop)])
        assert stopped.iteration == stop
        # the agents come in another order, as in an edited configuration
        resumed = run(
            folder, resume=folder, groups={**groups, "names": ("editor", "writer")}, evaluation=VALIDATED
        )
        assert same(weights(resumed.groups), weights(whole.groups)), stop
        assert timeless(resumed) == timeless(whole), stop
        assert resumed.state.best_at == whole.state.best_at
        assert [e["sampled"] for e in resumed.state.evaluations] == [
            e["sampled"] for e in whole.state.evaluations
        ]


def test_a_running_baseline_resumes_where_it_was(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", estimator=RoleBaseline())
    run(tmp_path / "part", estimator=RoleBaseline(), callbacks=[StopAt(2)])
    resumed = run(tmp_path / "part", resume=tmp_path / "part", estimator=RoleBaseline())
    assert resumed.estimator.state_dict() == whole.estimator.state_dict() != {}
    assert same(weights(resumed.groups), weights(whole.groups)) and timeless(resumed) == timeless(whole)


@pytest.mark.slow
def test_dynamic_sampling_and_turns_of_groups_resume_where_they_were(tmp_path: Path) -> None:
    more = {"rollout": RolloutSettings(samples=2, max_draws=3), "schedule": GroupSchedule("round_robin")}
    whole = run(tmp_path / "whole", **more)
    run(tmp_path / "part", callbacks=[StopAt(1)], **more)
    resumed = run(tmp_path / "part", resume=tmp_path / "part", **more)
    assert same(weights(resumed.groups), weights(whole.groups)) and timeless(resumed) == timeless(whole)


def test_each_agent_gets_its_own_optimizer_state_and_rate_back(tmp_path: Path) -> None:
    stopped = run(tmp_path, groups=APART, callbacks=[StopAt(2)])
    trainer = make_trainer(tmp_path)
    groups = make_groups(trainer.fabric, **APART, names=("editor", "writer"))  # type: ignore[arg-type]
    trainer._start(stopped.team, groups, make_data(), tmp_path, {})
    for name, group in groups.items():
        before, after = (
            named_state(g.policy, g.optimizer)
            for g in (stopped.groups[name], group)
            if g.optimizer is not None
        )
        assert all(torch.equal(before[key]["exp_avg"], after[key]["exp_avg"]) for key in before)
        assert group.counters.planned_steps == stopped.groups[name].counters.planned_steps > 0
        rates = {each.learner.rate.set(each.counters.planned_steps) for each in (group, stopped.groups[name])}
        assert len(rates) == 1 and rates != {group.settings.optimizer.lr}
    first, second = (
        named_state(group.policy, group.optimizer) for group in groups.values() if group.optimizer is not None
    )
    assert not torch.equal(first["model.norm.weight"]["exp_avg"], second["model.norm.weight"]["exp_avg"])


@pytest.mark.parametrize(
    "name", [pytest.param("", marks=pytest.mark.slow), "checkpoints", "checkpoints/iteration-000002"]
)
def test_a_run_goes_on_from_any_of_its_folders_into_another_one(
    tmp_path: Path, half_way: Path, whole: MultiAgentTrainer, name: str
) -> None:
    resumed = run(tmp_path, resume=half_way / name)
    assert resumed.iteration == 4 and [record["iteration"] for record in timeless(resumed)] == [3, 4, 4]
    assert same(weights(resumed.groups), weights(whole.groups))


def test_a_checkpoint_at_the_end_of_an_epoch_starts_the_next_one(tmp_path: Path) -> None:
    # six tasks, two per iteration: the first epoch ends with iteration 3
    run(tmp_path, callbacks=[StopAt(3)])
    resumed = run(tmp_path, resume=tmp_path, record=("train",), max_iterations=6)
    played = [
        {
            trajectory.task.id
            for trajectory in read_trajectories(tmp_path / "trajectories" / f"train-00000{iteration}.jsonl")
        }
        for iteration in (4, 5, 6)
    ]
    assert set().union(*played) == {task.id for task in make_tasks(6)} and resumed.iteration == 6


FINAL = ("summary.json", "plot.png", "report.html")


@pytest.mark.usefixtures("curve")
@pytest.mark.parametrize("validated", [True, False])
def test_resuming_a_finished_run_writes_what_is_missing_and_nothing_else(
    tmp_path: Path, validated: bool
) -> None:
    evaluation = EvaluationSettings(greedy=False, every=2 if validated else 0)
    logger = TensorBoardLogger(tmp_path / "logs", name="tensorboard", version="")
    whole = run(tmp_path, checkpoint_every=2, evaluation=evaluation, logger=[logger])
    final = {name: (tmp_path / name).read_bytes() for name in FINAL}
    checkpoint = tmp_path / "checkpoints" / "iteration-000004" / "manifest.json"
    times = [path.stat().st_mtime_ns for path in (checkpoint, *(tmp_path / name for name in FINAL))]
    again = run(tmp_path, resume=tmp_path, evaluation=evaluation)
    assert [path.stat().st_mtime_ns for path in (checkpoint, *(tmp_path / name for name in FINAL))] == times
    assert timeless(again) == timeless(whole) and same(weights(again.groups), weights(whole.groups))
    for name in FINAL:
        (tmp_path / name).unlink()
    leftovers = [tmp_path / "checkpoints" / f".writing-iteration-00000{number}" for number in (4, 5)]
    for folder in leftovers:
        folder.mkdir()
    (tmp_path / ".writing-123-summary.json").touch()
    run(tmp_path, resume=tmp_path, evaluation=evaluation)
    summary = json.loads((tmp_path / "summary.json").read_text())
    before = json.loads(final["summary.json"])
    assert {name: summary[name] for name in ("before", "after", "iterations", "best")} == {
        name: before[name] for name in ("before", "after", "iterations", "best")
    }
    assert (tmp_path / "plot.png").read_bytes() == final["plot.png"] and (tmp_path / "report.html").exists()
    assert not list(tmp_path.rglob(".writing-*")) and not (tmp_path / "run.lock").exists()


def test_a_run_killed_before_its_last_validation_repeats_no_step_in_tensorboard(tmp_path: Path) -> None:
    def logged() -> list[tuple[str, int]]:
        events = EventAccumulator(str(tmp_path / "logs" / "tensorboard")).Reload()
        return [(tag, event.step) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]

    def play(**how: Any) -> MultiAgentTrainer:
        logger = TensorBoardLogger(tmp_path / "logs", name="tensorboard", version="")
        return run(tmp_path, logger=[logger], **how)

    class Killed(Callback):
        """Ends the run after its last validation was logged, before it was saved."""

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.iteration == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(callbacks=[Killed()], checkpoint_every=4)
    resumed = play(resume=tmp_path)
    steps = logged()
    assert len(steps) == len(set(steps))
    expected = {
        (name, record["iteration"])
        for record in resumed.folder.read_metrics()
        for name in record
        if name != "iteration"
    }
    assert set(steps) == expected


def test_a_run_that_was_never_saved_begins_again_in_its_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Crash(Callback):
        def on_update_end(self, trainer: Any, *args: Any) -> None:
            if trainer.iteration == 2:
                raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run(tmp_path / "part", callbacks=[Crash()])
    again = run(tmp_path / "part")
    assert "holds a run that was never saved and begins again" in caplog.text
    assert (tmp_path / "part" / "metrics-discarded.jsonl").read_text().count("\n") == 3
    whole = run(tmp_path / "whole")
    assert timeless(again) == timeless(whole) and same(weights(again.groups), weights(whole.groups))
    with pytest.raises(ConfigError, match="already holds a run"):
        run(tmp_path / "part")


def test_a_run_beside_a_running_one_is_refused_also_as_a_resumption(tmp_path: Path) -> None:
    refused: list[str] = []

    class Second(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            for resume in (tmp_path, None):
                with pytest.raises(FolderInUse) as error:
                    run(tmp_path, resume=resume)
                refused.append(str(error.value))

    whole = run(tmp_path, callbacks=[Second()], max_iterations=1, checkpoint_every=1)
    assert len(refused) == 2 and all(f"in use by process {os.getpid()} on" in text for text in refused)
    assert whole.validate(whole.team, whole.groups, make_data()).trajectories, "which needs no lock"


@pytest.mark.slow
def test_a_longer_run_may_go_on_from_a_finished_one(tmp_path: Path) -> None:
    run(tmp_path / "short")
    longer = run(tmp_path / "short", resume=tmp_path / "short", max_iterations=6)
    assert same(weights(longer.groups), weights(run(tmp_path / "long", max_iterations=6).groups))


def test_changed_data_is_an_error_unless_allowed(stopped: Path) -> None:
    changed = {"train": tuple(replace(task, question=f"{task.question}!") for task in make_tasks(6))}
    with pytest.raises(CheckpointError, match=r"train data changed .* trainer.allow_changed_data=true"):
        run(stopped, resume=stopped, data=make_data(**changed))
    assert run(stopped, resume=stopped, data=make_data(**changed), allow_changed_data=True).iteration == 4


OTHER_PROMPT = {"template": {"user": "{question}!{history}", "chat": False}}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"data": {"tasks_per_iteration": 3}}, "data.tasks_per_iteration changed since"),
        ({"data": {"balance": "data_source"}}, "data.balance changed since"),
        ({"groups": {"each": {"writer": OTHER_PROMPT}}}, "the prompt of writer changed since"),
    ],
)
def test_other_tasks_per_iteration_or_prompts_are_errors_unless_allowed(
    stopped: Path, more: dict[str, Any], message: str
) -> None:
    def resume(**settings: Any) -> int:
        return run(
            stopped,
            resume=stopped,
            groups=more.get("groups"),
            data=make_data(**more.get("data", {})),
            **settings,
        ).iteration

    with pytest.raises(CheckpointError, match=message):
        resume()
    assert resume(allow_changed_data=True) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 5}, "has seed 0, this run has seed 5; use the same seed"),
        ({"groups": {"sharing": "shared"}}, "binds agents to groups as"),
    ],
)
def test_another_run_is_refused(stopped: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        run(stopped, resume=stopped, **changes)


@pytest.mark.parametrize(
    "file",
    [
        "manifest.json",
        "groups/writer/model.safetensors",
        "groups/editor/optimizer.pt",
        "groups/editor/group.json",
    ],
)
def test_a_damaged_checkpoint_is_refused(stopped: Path, file: str) -> None:
    path = stopped / "checkpoints" / "iteration-000002" / file
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(CheckpointError, match="iteration-000002"):
        run(stopped, resume=stopped)
