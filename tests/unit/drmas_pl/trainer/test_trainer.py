"""The training loop: its phases, hooks, files, limits and guard rails."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger

from drmas_pl.algorithms.baseline_estimators import BestOfK
from drmas_pl.algorithms.credit_rules import TeamReward
from drmas_pl.algorithms.estimators import GroupNormalizer
from drmas_pl.data.recorded import read_trajectories
from drmas_pl.env import StepResult
from drmas_pl.errors import CheckpointError, ConfigError, TrainingStopped
from drmas_pl.trainer.checks import TrainedAgent
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.state import run_marks
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.utils.manifest import read_manifest
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.lifecycle import State
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.schedule import GroupSchedule
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_groups, make_tasks, make_trainer

TEAM = WriterEditor(EvenEnv())


@pytest.fixture(autouse=True)
def no_curve(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Drawing takes longer than everything else here."""
    drawn: list[Any] = []
    monkeypatch.setattr(
        "drmas_pl.trainer.run_directory.plot_run", lambda *args, **kwargs: drawn.append((args, kwargs))
    )
    return drawn


def fit(
    folder: Path, groups: Mapping[str, Any] | None = None, team: Any = TEAM, data: Any = None, **settings: Any
) -> MultiAgentTrainer:
    trainer = make_trainer(folder, **settings)
    trainer.fit(team, make_groups(trainer.fabric, **(groups or {})), data or make_data())
    return trainer


def snapshot(groups: Mapping[str, PolicyWorker]) -> dict[str, torch.Tensor]:
    return {
        name: torch.cat([p.detach().clone().flatten() for p in group.policy.parameters()])
        for name, group in groups.items()
    }


def train_records(trainer: MultiAgentTrainer) -> list[dict[str, Any]]:
    return [record for record in trainer.folder.read_metrics() if "train/reward" in record]


def test_a_run_trains_every_group_and_leaves_them_asleep(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    groups = make_groups(trainer.fabric)
    before = snapshot(groups)
    state = trainer.fit(TEAM, groups, make_data())
    assert state.iteration == 4 and {group.state for group in groups.values()} == {State.ASLEEP}
    for name, weights in snapshot(groups).items():
        assert groups[name].weights_version > 0 and not torch.equal(weights, before[name])


def test_a_method_that_cannot_learn_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"advantage.k=4 with rollout.samples=4"):
        fit(tmp_path, estimator=BestOfK(k=4), rollout=RolloutSettings(samples=4))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_float16_is_refused_for_training_alone(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, precision="16-mixed")
    groups = make_groups(trainer.fabric)
    with pytest.raises(ConfigError, match=r"trainer.precision=16-mixed cannot be trained with"):
        trainer.fit(TEAM, groups, make_data())
    assert not (tmp_path / "metrics.jsonl").exists()
    assert trainer.validate(TEAM, groups, make_data()).trajectories


def test_a_method_that_is_not_what_it_says_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tmp_path, estimator=BestOfK(k=2), max_iterations=1)
    groups = make_groups(trainer.fabric)
    trained = [
        TrainedAgent(agent, UpdateSettings()) for group in groups.values() for agent in group.agents.values()
    ]
    trainer.check_method(trained)
    trainer.fit(TEAM, groups, make_data())
    assert caplog.text.count("pass@k values success alone") == 1


def test_every_turn_is_sampled_with_the_weights_of_its_iteration(tmp_path: Path) -> None:
    trainer = fit(tmp_path, record=("train",))
    versions = [
        {
            turn.weights_version
            for t in read_trajectories(trainer.folder.trajectories("train", n))
            for turn in t.turns
            if turn.agent == "editor"
        }
        for n in range(1, 5)
    ]
    steps = [record["train/group/editor/steps"] for record in train_records(trainer)]
    assert versions == [{int(sum(steps[:n]))} for n in range(4)] and sum(steps) >= 2
    assert [record["train/editor/weights_version"] for record in train_records(trainer)] == [
        sum(steps[: n + 1]) for n in range(4)
    ]


def test_a_frozen_group_never_changes(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    groups = make_groups(trainer.fabric, binding={"writer": {"trainable": False}})
    before = snapshot(groups)
    trainer.fit(TEAM, groups, make_data())
    after = snapshot(groups)
    assert torch.equal(after["writer"], before["writer"]) and groups["writer"].weights_version == 0
    assert not torch.equal(after["editor"], before["editor"])
    assert not any(
        name.startswith("train/group/writer") for record in train_records(trainer) for name in record
    )


def test_agents_of_a_shared_group_train_one_set_of_weights(tmp_path: Path) -> None:
    trainer = fit(tmp_path, {"sharing": "shared"})
    record = next(record for record in train_records(trainer) if record["train/group/shared/steps"])
    shares = [record.get(f"train/{name}/grad_share", 0.0) for name in WriterEditor.possible_agents]
    assert sum(shares) == pytest.approx(1.0)


def test_sharers_keep_their_own_sampling(tmp_path: Path) -> None:
    each = {"editor": {"sampling": {"max_new_tokens": 2}}}
    trainer = fit(tmp_path, {"sharing": "shared", "each": each}, record=("train",), max_iterations=1)
    turns = [turn for t in read_trajectories(trainer.folder.trajectories("train", 1)) for turn in t.turns]
    lengths = {
        name: max(len(turn.response_ids) for turn in turns if turn.agent == name)
        for name in WriterEditor.possible_agents
    }
    assert lengths == {"writer": 4, "editor": 2}


class Spy(Callback):
    """Notes every hook it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        # Fabric's own hooks come with keywords alone
        return lambda *args, **fabric: self.calls.extend([(name, args)] if args else [])

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.calls.append((f"setup {stage}", (trainer, pl_module)))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.calls.append((f"teardown {stage}", (trainer, pl_module)))


def evaluation_hooks(phase: str) -> list[str]:
    parts = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
    return [f"on_{phase}_{part}" for part in parts]


def test_hooks_are_called_in_order_with_trainer_module_and_batch(tmp_path: Path) -> None:
    spy = Spy()
    trainer = fit(
        tmp_path, callbacks=[spy], max_iterations=2, evaluation=EvaluationSettings(greedy=False, every=1)
    )
    validation = evaluation_hooks("validation")
    rollout = ["on_rollout_start", "on_rollout_end"]
    update = ["on_update_start", *2 * ["on_worker_update_start"], "on_update_end"]
    loop = ["on_train_batch_start", *rollout, *update, "on_train_batch_end", *validation]
    assert [name for name, _ in spy.calls] == [
        *("setup fit", "on_fit_start", *validation, "on_train_start", "on_train_epoch_start", *loop, *loop),
        *("on_train_epoch_end", "on_train_end", "on_save_checkpoint", "on_fit_end", "teardown fit"),
    ]
    workers = [args[2:] for name, args in spy.calls if name == "on_worker_update_start"]
    assert workers == 2 * [("writer", 1, 2), ("editor", 2, 2)]
    starts = [args for name, args in spy.calls if name == "on_train_batch_start"]
    assert [(args[2], args[3]) for args in starts] == [(trainer.data.tasks_for(n), n) for n in range(2)]
    assert all(args[0] is trainer and set(args[1].agents) == {"writer", "editor"} for _, args in spy.calls)
    _, (_, _, metrics, tasks, index) = [call for call in spy.calls if call[0] == "on_train_batch_end"][1]
    assert (
        metrics["train/reward"] == train_records(trainer)[1]["train/reward"]
        and len(tasks) == 2
        and index == 1
    )


def test_rollout_and_update_hooks_are_given_what_the_stages_get_and_return(tmp_path: Path) -> None:
    spy = Spy()
    trainer = fit(tmp_path, callbacks=[spy], max_iterations=2)

    def arguments(hook: str) -> list[tuple[Any, ...]]:
        found = [args for name, args in spy.calls if name == hook]
        assert all(args[0] is trainer and args[1] is trainer.module for args in found)
        return [args[2:] for args in found]

    assert arguments("on_rollout_start") == [(trainer.data.tasks_for(n), n) for n in range(2)]
    rollouts = arguments("on_rollout_end")
    batches = arguments("on_update_start")
    reports = arguments("on_update_end")
    assert [args[1] for hook in (rollouts, batches, reports) for args in hook] == [0, 1] * 3
    for (rollout, _), (batch, _), (report, _), record in zip(
        rollouts, batches, reports, train_records(trainer), strict=True
    ):
        turns = [turn for trajectory in rollout.trajectories for turn in trajectory.turns]
        assert [id(turn) for turn in batch.all_turns.turns] == [id(turn) for turn in turns]
        assert len(batch.advantage) == len(batch.turns)
        assert {row.agent for rows in batch.rows.values() for row in rows} <= set(trainer.agents)
        steps = {name: record[f"train/group/{name}/steps"] for name in trainer.groups}
        assert {name: found.steps for name, found in report.policies.items()} == steps
        assert report.critics == {}


def test_a_saved_checkpoint_holds_what_a_callback_adds_to_it(tmp_path: Path) -> None:
    class Note(Callback):
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            checkpoint["note"] = checkpoint["global_step"]

    fit(tmp_path, callbacks=[Note()], max_iterations=2)
    saved = torch.load(tmp_path / "checkpoints" / "iteration-000002" / "callbacks.pt", weights_only=True)
    assert saved["note"] == 2 and saved["callbacks"] == {}


@pytest.mark.parametrize(("method", "phase"), [("validate", "validation"), ("test", "test")])
def test_an_evaluation_calls_its_hooks(tmp_path: Path, method: str, phase: str) -> None:
    spy = Spy()
    trainer = make_trainer(tmp_path, callbacks=[spy])
    data = make_data(test=make_tasks(2, "test"))
    result = getattr(trainer, method)(TEAM, make_groups(trainer.fabric), data)
    hooks = [name for name, _ in spy.calls]
    assert hooks == [f"setup {method}", *evaluation_hooks(phase), f"teardown {method}"]
    assert trainer.callback_metrics[f"{phase}/success"] == pytest.approx(result.sampled)


def test_a_callback_hears_of_the_exception_that_ends_a_run(tmp_path: Path) -> None:
    class Faulty(EvenEnv):
        def act(self, action: str) -> StepResult:
            raise OSError("retriever down")

    spy = Spy()
    with pytest.raises(TrainingStopped, match=r"8 of 8 trajectories failed.*OSError: retriever down"):
        fit(tmp_path, team=WriterEditor(Faulty()), data=make_data(validation=None), callbacks=[spy])
    assert spy.calls[-1][0] == "on_exception" and isinstance(spy.calls[-1][1][2], TrainingStopped)


def test_a_callback_may_stop_the_run(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = trainer.iteration == 2

    trainer = fit(tmp_path, callbacks=[Stop()], evaluation=EvaluationSettings(greedy=False, every=1))
    assert trainer.iteration == 2 and (tmp_path / "checkpoints" / "iteration-000002").is_dir()


class Log(DummyLogger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, set[str]]] = []

    def log_metrics(self, metrics: Any, step: Any = None) -> None:
        self.seen.append((step, set(metrics)))


def test_loggers_receive_every_record_with_its_step(tmp_path: Path) -> None:
    log = Log()
    trainer = fit(tmp_path, logger=[log], evaluation=EvaluationSettings(greedy=False, every=2))
    assert [step for step, _ in log.seen] == [0, 1, 2, 2, 3, 4, 4]
    assert log.seen == [
        (record["iteration"], set(record) - {"iteration"}) for record in trainer.folder.read_metrics()
    ]


def test_metrics_of_an_iteration_name_team_agents_groups_and_times(tmp_path: Path) -> None:
    record = max(train_records(fit(tmp_path)), key=len)
    agent = (
        "calls",
        "valid",
        "truncated",
        "prompt_tokens",
        "response_tokens",
        "amplification",
        "amplification_global",
        "grad_norm",
    )
    expected = {
        f"train/{name}/{metric}"
        for name in ("writer", "editor")
        for metric in (*agent, "loss", "mismatch", "entropy", "clipped")
    }
    expected |= {
        "train/reward",
        "train/success",
        "train/failed",
        "train/tries",
        "train/group/writer/lr",
        "time/rollout",
        "time/update",
    }
    assert expected <= set(record)
    assert record["train/writer/mismatch_max"] < 1e-4, "engine and trainer agree on the same weights"


def test_the_summary_and_the_curve_are_written(tmp_path: Path, no_curve: list[Any]) -> None:
    fit(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {"before", "after", "best", "calls_per_agent", "seconds", "peak_rss_mb"} <= set(
        summary
    ) and summary["iterations"] == 4
    ((records, path), settings) = no_curve[0]
    assert path == tmp_path / "plot.png" and len(records) == 6 and settings["agents"] == ["writer", "editor"]


def test_validation_comes_before_and_after_and_every_so_often(tmp_path: Path) -> None:
    def validated(folder: str, every: int) -> list[int]:
        return [
            entry["iteration"]
            for entry in fit(
                tmp_path / folder, evaluation=EvaluationSettings(greedy=False, every=every)
            ).state.evaluations
        ]

    assert (
        validated("never", 0) == [0, 4]
        and validated("three", 3) == [0, 3, 4]
        and validated("two", 2) == [0, 2, 4]
    )


@pytest.mark.parametrize(("limit", "played"), [(1.0, 5), (1, 2), (0.4, 2), (2, 4)])
def test_validation_batches_are_limited(tmp_path: Path, limit: float, played: int) -> None:
    trainer = make_trainer(tmp_path, limit_val_batches=limit)
    result = trainer.validate(TEAM, make_groups(trainer.fabric), make_data(validation=make_tasks(5, "held")))
    assert len(result.trajectories) == played


@pytest.mark.parametrize("settings", [{"limit_val_batches": 0}, {"data": {"validation": None}}])
def test_a_run_without_validation_is_possible(tmp_path: Path, settings: dict[str, Any]) -> None:
    data = make_data(**settings.pop("data", {}))
    trainer = fit(tmp_path, data=data, max_iterations=1, **settings)
    assert trainer.state.evaluations == [] and (tmp_path / "checkpoints" / "iteration-000001").is_dir()
    assert json.loads((tmp_path / "summary.json").read_text())["after"] is None
    with pytest.raises(ValueError, match="cannot evaluate validation: the split has no tasks"):
        trainer.validate(TEAM, trainer.groups, data)


def test_fast_dev_run_is_one_iteration_without_logs_and_checkpoints(tmp_path: Path) -> None:
    log = Log()
    data = make_data(validation=make_tasks(5, "held"))
    trainer = fit(
        tmp_path, data=data, fast_dev_run=True, logger=[log], record=("validation",), max_iterations=100
    )
    assert trainer.iteration == 1 and not log.seen and not trainer.folder.checkpoints.exists()
    assert len(read_trajectories(trainer.folder.trajectories("validation", 1))) == 2


@pytest.mark.parametrize("phases", [(), ("train",), ("validation", "train")])
def test_chosen_phases_are_recorded(tmp_path: Path, phases: tuple[str, ...]) -> None:
    trainer = fit(tmp_path, record=phases, max_iterations=1)
    found = {path.name.rpartition("-")[0] for path in tmp_path.glob("trajectories/*.jsonl")}
    assert found == set(phases)
    if "train" in phases:
        assert len(read_trajectories(trainer.folder.trajectories("train", 1))) == 8


def test_an_unknown_phase_cannot_be_recorded(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"record must name phases out of \['train', 'validation', 'test'\], got \['valid'\]",
    ):
        make_trainer(tmp_path, record=("valid", "train"))


@pytest.mark.parametrize(
    ("every", "keep_best", "kept"), [(0, False, {4}), (1, False, {4}), (1, True, {2, 4}), (3, True, {4})]
)
def test_the_last_and_the_best_checkpoint_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, keep_best: bool, kept: set[int]
) -> None:
    scores = iter([0.9, 0.25, 0.75, 0.5, 0.5])
    evaluated = MultiAgentTrainer._evaluate

    def rigged(*args: Any) -> Any:
        return replace(evaluated(*args), sampled=next(scores))

    monkeypatch.setattr(MultiAgentTrainer, "_evaluate", rigged)
    fit(
        tmp_path,
        checkpoint_every=every,
        keep_best=keep_best,
        evaluation=EvaluationSettings(greedy=False, every=1),
    )
    assert {int(path.name[-6:]) for path in (tmp_path / "checkpoints").glob("iteration-*")} == kept


class Generous(EvenEnv):
    """Pays everybody."""

    def act(self, action: str) -> StepResult:
        return StepResult("", 1.0, terminated=True, success=True)


def test_a_run_without_signal_is_stopped_and_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rollout = RolloutSettings(samples=2, max_idle_iterations=3)
    with caplog.at_level(logging.WARNING, "drmas_pl"), pytest.raises(TrainingStopped) as stopped:
        fit(tmp_path, team=WriterEditor(Generous()), rollout=rollout, max_iterations=9)
    assert str(stopped.value).startswith("no learning signal for 3 iterations: every trajectory earned 1")
    assert str(stopped.value).endswith(f"go on from iteration 3: python tools/train.py resume={tmp_path}")
    assert caplog.text.count("every trajectory earned 1, which teaches nothing") == 1, (
        "at the first iteration"
    )
    manifest = read_manifest(tmp_path / "checkpoints" / "iteration-000003")
    assert manifest.iteration == 3 and manifest.state["idle"] == 0


@pytest.mark.parametrize("fast_dev_run", [False, True])
def test_a_run_whose_trajectories_fail_is_saved_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast_dev_run: bool
) -> None:
    class Breaks(EvenEnv):
        def act(self, action: str) -> StepResult:
            if trainer.iteration == 2 or fast_dev_run:
                raise OSError("retriever down")
            return super().act(action)

    trainer = make_trainer(tmp_path, checkpoint_every=1, fast_dev_run=fast_dev_run)
    groups, team, data = make_groups(trainer.fabric), WriterEditor(Breaks()), make_data(validation=None)
    with pytest.raises(TrainingStopped, match=r"8 of 8 trajectories failed.*retriever down") as stopped:
        trainer.fit(team, groups, data)
    if fast_dev_run:
        assert "resume=" not in str(stopped.value) and not trainer.folder.checkpoints.exists()
        return
    assert str(stopped.value).endswith(f"go on from iteration 2: python tools/train.py resume={tmp_path}")
    assert [path.name for path in trainer.folder.checkpoints.glob("iteration-*")] == ["iteration-000002"]
    resumed = make_trainer(tmp_path)
    resumed.fit(TEAM, make_groups(resumed.fabric), data, ckpt_path=tmp_path)
    assert resumed.iteration == 4


def test_a_stop_that_cannot_be_saved_is_still_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("drmas_pl.trainer.trainer.save_checkpoint", full)
    rollout = RolloutSettings(samples=2, max_idle_iterations=1)
    with caplog.at_level(logging.WARNING, "drmas_pl"), pytest.raises(TrainingStopped) as stopped:
        fit(tmp_path, team=WriterEditor(Generous()), rollout=rollout)
    assert "no learning signal" in str(stopped.value) and "resume=" not in str(stopped.value)
    assert "the run could not be saved where it stopped: disk full" in caplog.text


def test_what_keeps_a_run_from_learning_is_in_its_summary_while_it_lasts(tmp_path: Path) -> None:
    frozen = {name: {"trainable": False} for name in WriterEditor.possible_agents}
    trainer = fit(tmp_path, {"binding": frozen}, max_iterations=2)
    assert [diagnosis.cause for diagnosis in trainer.state.diagnoses] == ["all agents frozen"]
    (message,) = json.loads((tmp_path / "summary.json").read_text())["warnings"]
    assert message.startswith("all agents are frozen")
    healthy = fit(tmp_path / "healthy", max_iterations=2)
    assert (
        healthy.state.lasting == ()
        and json.loads((tmp_path / "healthy" / "summary.json").read_text())["warnings"] == []
    )


def test_a_run_of_frozen_agents_is_not_mistaken_for_one_without_signal(tmp_path: Path) -> None:
    frozen = {name: {"trainable": False} for name in WriterEditor.possible_agents}
    trainer = fit(tmp_path, {"binding": frozen}, rollout=RolloutSettings(samples=2, max_idle_iterations=1))
    assert trainer.iteration == 4


def test_skipped_minibatches_are_dumped_and_end_the_run(tmp_path: Path) -> None:
    class Broken(GroupNormalizer):
        def __call__(self, table: Any) -> torch.Tensor:
            return torch.full((len(table),), 3e38)

    update = UpdateSettings(max_skips=2, dump_folder=str(tmp_path / "skipped"))
    with pytest.raises(TrainingStopped, match=r"skipped 2 minibatches in a row.* go on from iteration 1"):
        fit(tmp_path, {"update": update}, estimator=Broken())
    assert read_manifest(tmp_path / "checkpoints" / "iteration-000001").iteration == 1
    assert list((tmp_path / "skipped").iterdir())


def test_the_estimator_decides_the_advantages(tmp_path: Path) -> None:
    def squares(folder: str, estimator: GroupNormalizer) -> float:
        record = train_records(fit(tmp_path / folder, estimator=estimator, max_iterations=2))[-1]
        return float(record["train/editor/advantage_square"])

    assert squares("sample", GroupNormalizer()) != squares("population", GroupNormalizer(ddof=0))


def test_rollout_settings_reach_the_collector(tmp_path: Path) -> None:
    rollout = RolloutSettings(
        samples=3, max_calls=1, env_workers=2, max_concurrent=5, retries=1, max_failed_share=0.5
    )
    collector = fit(tmp_path, rollout=rollout, max_iterations=1).collector
    found = [
        collector.max_calls,
        collector.env_workers,
        collector.max_concurrent,
        collector.retries,
        collector.max_failed_share,
    ]
    assert found == [1, 2, 5, 1, 0.5]


def test_a_kl_penalty_in_the_reward_lowers_the_scores(tmp_path: Path) -> None:
    objective = {"kl_coef": 10.0, "kl_in": "reward", "kl_estimator": "k2"}
    trainer = fit(tmp_path, {"agent": {"objective": objective}})
    last = train_records(trainer)[-1]
    assert last["train/editor/reward_mean"] < last["train/reward"]


def test_test_and_validate_play_a_checkpoints_weights(tmp_path: Path) -> None:
    data = make_data(test=make_tasks(3, "unseen"))
    trained = fit(tmp_path, data=data)
    other = make_trainer(tmp_path, record=("test",))
    groups = make_groups(other.fabric)
    result = other.test(TEAM, groups, data, ckpt_path=tmp_path)
    assert len(result.trajectories) == 3 and "test/success" in result.metrics
    assert all(
        torch.equal(weights, snapshot(trained.groups)[name]) for name, weights in snapshot(groups).items()
    )
    assert {turn.weights_version for t in result.trajectories for turn in t.turns} <= {
        g.weights_version for g in trained.groups.values()
    }
    assert len(read_trajectories(other.folder.trajectories("test", 4))) == 3, (
        "recorded under the checkpoint's iteration"
    )
    assert other.validate(TEAM, groups, data).sampled == trained.state.evaluations[-1]["sampled"]


def test_evaluating_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        trainer.validate(TEAM, make_groups(trainer.fabric), make_data(), ckpt_path=tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_iterations": 0}, "max_iterations must be at least 1, got 0"),
        ({"devices": 2}, "devices=2: one process trains on one device"),
    ],
)
def test_impossible_runs_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(tmp_path, **settings)


def test_more_tasks_per_iteration_than_there_are_play_some_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trainer = fit(tmp_path, data=make_data(tasks_per_iteration=8), max_iterations=1, record=("train",))
    assert (
        len(read_trajectories(trainer.folder.trajectories("train", 1))) == 32
        and "some come twice" in caplog.text
    )


def test_the_manifest_describes_the_run(tmp_path: Path) -> None:
    trainer = fit(tmp_path, {"sharing": "shared"}, seed=11)
    manifest = read_manifest(tmp_path / "checkpoints" / "iteration-000004")
    assert (manifest.iteration, manifest.seed, manifest.agents) == (
        4,
        11,
        {"writer": "shared", "editor": "shared"},
    )
    assert (
        manifest.data == run_marks(trainer.data, trainer.agents)
        and len(set(manifest.templates.values())) == 1
    )
    assert manifest.data["train data"] == trainer.data.fingerprints["train"]


@pytest.mark.parametrize(
    ("schedule", "learners"),
    [
        (GroupSchedule("round_robin"), ["writer", "editor", "writer", "editor"]),
        (GroupSchedule("alternate", every=2), ["writer", "writer", "editor", "editor"]),
    ],
    ids=["round_robin", "alternate"],
)
def test_groups_learn_when_it_is_their_turn(
    tmp_path: Path, schedule: GroupSchedule, learners: list[str]
) -> None:
    trainer = fit(tmp_path, schedule=schedule)
    named = [
        {name.split("/")[2] for name in record if name.startswith("train/group/")}
        for record in train_records(trainer)
    ]
    assert named == [{name} for name in learners]
    # everybody plays and is explained all the same
    assert all(
        {"train/writer/calls", "train/editor/calls"} <= set(record) for record in train_records(trainer)
    )


def test_a_learning_rate_schedule_counts_only_the_iterations_in_which_its_group_learns(
    tmp_path: Path,
) -> None:
    trainer = make_trainer(tmp_path)
    groups = make_groups(trainer.fabric, iterations=7, schedule=GroupSchedule("alternate", every=2))
    assert [group.settings.total_steps for group in groups.values()] == [4, 3]


def test_dynamic_sampling_trains_only_on_tasks_with_signal(tmp_path: Path) -> None:
    rollout = RolloutSettings(samples=2, max_draws=5)
    trainer = fit(
        tmp_path,
        rollout=rollout,
        data=make_data(train=make_tasks(20), tasks_per_iteration=4),
        record=("train",),
    )
    for iteration, record in enumerate(train_records(trainer), start=1):
        played = read_trajectories(trainer.folder.trajectories("train", iteration))
        scores: dict[str, set[tuple[float, ...]]] = {}
        for trajectory in played:
            scores.setdefault(trajectory.task.id, set()).add((trajectory.reward,))
        kept = [task for task, found in scores.items() if len(found) > 1]
        assert record["train/dropped_tasks"] == pytest.approx(1 - len(kept) / len(scores))
        assert len(kept) == 4 and record["train/editor/no_signal"] < 0.5
    assert any(record["train/dropped_tasks"] > 0 for record in train_records(trainer))


def test_alignment_decides_how_many_rows_an_agent_trains(tmp_path: Path) -> None:
    plain = train_records(fit(tmp_path / "plain", max_iterations=1))[0]
    aligned = train_records(
        fit(
            tmp_path / "aligned",
            rollout=RolloutSettings(samples=4, align_turns={"editor": 1}),
            max_iterations=1,
        )
    )[0]
    assert plain["train/editor/calls"] == aligned["train/editor/calls"] > 1
    assert aligned["train/group/editor/rows"] < plain["train/group/editor/rows"]
    assert aligned["train/group/writer/rows"] == plain["train/group/writer/rows"]


def test_the_credit_rule_decides_the_scores(tmp_path: Path) -> None:
    plain = train_records(fit(tmp_path / "plain", max_iterations=1))[0]
    half = train_records(fit(tmp_path / "half", max_iterations=1, credit=TeamReward(alpha=0.5)))[0]
    assert (
        half["train/writer/reward_mean"] == pytest.approx(plain["train/writer/reward_mean"] / 2)
        and half["train/reward"] > 0
    )
