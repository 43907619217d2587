"""What is refused before anything is played: wrong types, objects of other runs, names of nobody, and folders in use."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.loggers import CSVLogger

from drmas_pl.agent import Agent
from drmas_pl.algorithms.composite import Inherited, Standardized
from drmas_pl.algorithms.credit_rules import ZeroSum
from drmas_pl.algorithms.estimators import AdvantageEstimator, GroupNormalizer
from drmas_pl.data.module import TaskDataModule
from drmas_pl.env import StepResult
from drmas_pl.errors import ConfigError, OutOfMemory, StorageError, TrainingStopped
from drmas_pl.optim import OptimizerSettings
from drmas_pl.rollout.collector import Collector
from drmas_pl.trainer import trainer as trainer_module
from drmas_pl.trainer.rollouts import SyncRollouts
from drmas_pl.trainer.run_directory import RunDirectory
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.tensorboard import GroupedTensorBoardLogger
from drmas_pl.types import SamplingParams, Task
from drmas_pl.utils.memory import UPDATE_REMEDY
from drmas_pl.workers.build import AgentBinding, build_groups
from drmas_pl.workers.learner import UpdateSettings
from tests.helpers.toy import (
    EvenEnv,
    Speaker,
    WriterEditor,
    load,
    make_bindings,
    make_data,
    make_engine,
    make_groups,
    make_tasks,
    make_trainer,
)

TEAM = WriterEditor(EvenEnv())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"estimator": "grpo"},
            "estimator must be an AdvantageEstimator or a function or None, got 'grpo' (str)",
        ),
        (
            {"estimator": GroupNormalizer},
            "estimator must be an AdvantageEstimator or a function from a TurnBatch to advantages",
        ),
        ({"credit": "zero_sum"}, "credit must be a credit rule such as TeamReward(), got 'zero_sum' (str)"),
        ({"credit": ZeroSum}, "credit must be a credit rule such as TeamReward(), got <class"),
        ({"schedule": "joint"}, "schedule must be a function or None, got 'joint' (str)"),
        ({"rollout": {"samples": 4}}, "rollout must be a RolloutSettings or None, got {'samples': 4} (dict)"),
        ({"evaluation": RolloutSettings()}, "evaluation must be an EvaluationSettings or None, got Rollout"),
        ({"max_iterations": "3"}, "max_iterations must be a whole number, got '3' (str)"),
        ({"max_iterations": 2.5}, "max_iterations must be a whole number, got 2.5 (float)"),
        ({"max_iterations": True}, "max_iterations must be a whole number, got True (bool)"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"record": "validation"}, "record must be a sequence, got 'validation' (str)"),
        ({"fast_dev_run": "yes"}, "fast_dev_run must be True or False, got 'yes' (str)"),
        ({"logger": "tensorboard"}, "logger must be a Lightning logger, a list of them, True or False, got"),
        ({"logger": [object()]}, "logger must be a Lightning logger, a list of them, True or False, got"),
        ({"hparams": [1]}, "hparams must be a mapping or None, got [1] (list)"),
    ],
)
def test_the_trainer_refuses_other_types(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError) as caught:
        make_trainer(tmp_path, **settings)
    assert str(caught.value).startswith(message)


def test_the_folder_must_be_a_path() -> None:
    with pytest.raises(TypeError, match=r"^output_dir must be a text or a Path, got None$"):
        make_trainer(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("callbacks", [[object()], ["Timer"]])
def test_what_is_no_callback_is_refused(callbacks: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^callbacks\[0\] must be a Lightning callback, got "):
        make_trainer(tmp_path, callbacks=callbacks)


def test_callbacks_and_loggers_may_come_alone_and_loggers_as_a_flag(tmp_path: Path) -> None:
    timer, logger = Timer(), CSVLogger(str(tmp_path))
    trainer = make_trainer(tmp_path, callbacks=timer, logger=logger, enable_progress_bar=False)
    assert trainer.callbacks == [timer] and trainer.loggers == [logger]
    for nothing in (False, None, ()):
        assert make_trainer(tmp_path, logger=nothing).loggers == []
    made = make_trainer(tmp_path, logger=True, max_iterations=1)
    assert [type(one) for one in made.loggers] == [GroupedTensorBoardLogger, CSVLogger]
    made.fit(TEAM, make_groups(made.fabric), make_data(validation=None))
    assert (tmp_path / "logs" / "csv" / "metrics.csv").exists()


@pytest.mark.parametrize("method", ["fit", "validate"])
def test_swapped_arguments_are_named(method: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    groups, call = make_groups(trainer.fabric), getattr(trainer, method)
    for arguments, message in [
        ((groups, TEAM, make_data()), r"^team must be a Team, got \{"),
        ((TEAM, make_data(), groups), r"^groups must be a mapping, got <"),
        ((TEAM, groups, make_tasks(2)), r"^data must be a TaskDataModule, got \("),
    ]:
        with pytest.raises(TypeError, match=message):
            call(*arguments)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Collector({}, TEAM), "team must be a Team, got {} (dict)"),
        (lambda: Collector(TEAM, {"writer": "x"}), "agents['writer'] must be an Agent, got 'x' (str)"),
        (lambda: Collector(TEAM, {}, retries="1"), "retries must be a whole number, got '1' (str)"),
        (lambda: Speaker(7), "name must be a text, got 7 (int)"),
        (lambda: Speaker("a", sampling="greedy"), "sampling must be a SamplingParams or a mapping or None"),
        (lambda: Speaker("a", max_prompt_tokens="9"), "max_prompt_tokens must be a whole number, got '9' (str)"),
        (lambda: Speaker("a", invalid_penalty="1"), "invalid_penalty must be a number, got '1' (str)"),
        (lambda: Speaker("a", optimizer=1e-3), "optimizer must be an OptimizerSettings or a mapping or None"),
        (lambda: Speaker("a", objective="grpo"), "objective must be settings of PolicyObjective or an object"),
        (lambda: WriterEditor("search"), "env must be a Gymnasium environment, got 'search' (str)"),
        (lambda: EvenEnv("what?"), "tasks must be a sequence of Task, got 'what?' (str)"),
        (lambda: EvenEnv([{"question": "?"}]), "tasks must be a sequence of Task, got [{'question': '?'}] (list)"),
        (lambda: TaskDataModule(tasks_per_iteration="2"), "tasks_per_iteration must be a whole number, got '2'"),
        (lambda: TaskDataModule(tasks_per_iteration=2, weights=["nq"]), "weights must be a mapping or None, got"),
        (lambda: AgentBinding("writer", "tiny-1"), "AgentBinding.agent must be an Agent, got 'writer' (str)"),
        (lambda: AgentBinding(Speaker("a"), 3), "AgentBinding.model must be a text, got 3 (int)"),
        (lambda: RolloutSettings(samples="8"), "RolloutSettings.samples must be a whole number, got '8' (str)"),
        (lambda: RolloutSettings(align_turns={"a": "2"}), "RolloutSettings.align_turns['a'] must be a whole"),
        (lambda: EvaluationSettings(greedy="no"), "EvaluationSettings.greedy must be True or False, got 'no' (str)"),
        (lambda: SamplingParams(temperature="1"), "SamplingParams.temperature must be a number, got '1' (str)"),
        (lambda: OptimizerSettings(lr="1e-3"), "OptimizerSettings.lr must be a number, got '1e-3' (str)"),
        (lambda: UpdateSettings(epochs=None), "UpdateSettings.epochs must be a whole number, got None"),
    ],
)  # fmt: skip
def test_public_classes_refuse_other_types(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        build()
    assert str(caught.value).startswith(message)


def test_groups_are_built_from_bindings_a_fabric_and_functions(tmp_path: Path) -> None:
    fabric = make_trainer(tmp_path).fabric
    good: dict[str, Any] = {"sharing": "shared", "fabric": fabric, "load": load, "engine": make_engine}
    for changes, message in [
        ({"fabric": "cpu"}, r"^fabric must be a Fabric, such as trainer.fabric, got 'cpu' \(str\)$"),
        ({"load": "tiny-1"}, r"^load must be a function, got 'tiny-1' \(str\)$"),
        ({"engine": "transformers"}, r"^engine must be a function, got 'transformers' \(str\)$"),
    ]:
        with pytest.raises(TypeError, match=message):
            build_groups(make_bindings(), **{**good, **changes})
    with pytest.raises(TypeError, match=r"^bindings must be a list of AgentBinding, got Speaker"):
        build_groups([Speaker("writer")], **good)  # type: ignore[list-item]


@pytest.mark.parametrize("penalty", [-0.1, float("nan"), float("-inf")])
def test_a_penalty_that_rewards_is_refused(penalty: float) -> None:
    with pytest.raises(ValueError, match=r"^invalid_penalty must be (a number|at least 0 and finite), got "):
        Speaker("writer", invalid_penalty=penalty)


def test_a_collector_takes_nobody_who_is_not_of_the_team() -> None:
    agents: dict[str, Agent] = {name: Speaker(name) for name in ("writer", "editor", "critic")}
    with pytest.raises(
        ValueError, match=r"has agents \['writer', 'editor'\], got \['critic'\] as well; leave them out$"
    ):
        Collector(TEAM, agents)


@pytest.mark.parametrize("names", [("writer",), ("writer", "editor", "critic")])
def test_groups_must_hold_the_team_and_nobody_else(names: tuple[str, ...], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"^groups must hold exactly the agents \['writer', 'editor'\] of WriterEditor, each once, got ",
    ):
        trainer.fit(TEAM, make_groups(trainer.fabric, names=names), make_data())


def test_an_agent_in_two_groups_and_what_is_no_group_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    groups: dict[str, Any] = dict(make_groups(trainer.fabric))
    with pytest.raises(ConfigError, match=r"got \['editor', 'writer', 'writer'\]$"):
        trainer.fit(TEAM, {**groups, "again": groups["writer"]}, make_data())
    with pytest.raises(ConfigError, match=r"^groups\['writer'\] must be a worker group, got Speaker"):
        trainer.fit(TEAM, {**groups, "writer": Speaker("writer")}, make_data())  # type: ignore[dict-item]


def test_groups_of_another_trainer_are_refused(tmp_path: Path) -> None:
    other = make_trainer(tmp_path / "other")
    trainer = make_trainer(tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"^worker group '\w+' was built for another trainer; .*trainer\.fabric"
    ):
        trainer.fit(TEAM, make_groups(other.fabric), make_data())


class Naming(AdvantageEstimator):
    """An estimator of a user's own that names an agent."""

    named_agents = ("boss",)

    def __call__(self, table: Any) -> torch.Tensor:
        return table.score


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"rollout": RolloutSettings(align_turns={"boss": 2})}, "rollout.align_turns"),
        ({"credit": ZeroSum(["boss"])}, r"credit \(ZeroSum\)"),
        ({"estimator": Inherited(GroupNormalizer(), {"boss": "writer"})}, r"advantage \(Inherited\)"),
        (
            {"estimator": Standardized(Inherited(GroupNormalizer(), {"writer": "boss"}))},
            r"advantage \(Standardized\)",
        ),
        ({"estimator": Naming()}, r"advantage \(Naming\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_of_nobody_are_refused_before_anything_is_played(
    settings: dict[str, Any], setting: str, tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path, **settings)
    agents = [Speaker(name) for name in ("writer", "editor")]
    with pytest.raises(
        ConfigError, match=rf"^{setting} must name agents out of \['writer', 'editor'\], got \['boss'\]"
    ):
        trainer.check_team(TEAM, make_data(), agents)
    with pytest.raises(ConfigError, match=rf"^{setting} must name agents"):
        trainer.fit(TEAM, make_groups(trainer.fabric), make_data())
    assert not trainer.folder.metrics.exists()


def test_a_folder_that_holds_a_run_is_not_used_again(tmp_path: Path) -> None:
    def run(**resume: Any) -> None:
        trainer = make_trainer(tmp_path, max_iterations=2 if resume else 1)
        trainer.fit(TEAM, make_groups(trainer.fabric), make_data(validation=None), **resume)

    run()
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(
        ConfigError, match=r"already holds a run; go on with fit\(…, ckpt_path='.*'\), or choose"
    ):
        run()
    assert (tmp_path / "metrics.jsonl").read_text() == before
    run(ckpt_path=tmp_path)


def test_the_check_of_the_environment_can_be_left_out(tmp_path: Path) -> None:
    begun: list[str] = []

    class Counting(EvenEnv):
        shared = frozenset({"begun"})
        begun: list[str]

        def begin(self, task: Task) -> str:
            begun.append(task.id)
            return super().begin(task)

        def act(self, action: str) -> StepResult:
            result = super().act(action)
            return StepResult(result.observation, str(result.reward), terminated=True)  # type: ignore[arg-type]

    data, agents = make_data(), [Speaker(name) for name in ("writer", "editor")]
    with pytest.raises(
        ConfigError,
        match=r"Counting\.act: the reward must be a number, got '.*' \(str\); mend it, or .* trainer\.env_check=false$",
    ):
        make_trainer(tmp_path).check_team(WriterEditor(Counting()), data, agents)
    assert set(begun) == {"toy-0"}
    begun.clear()
    make_trainer(tmp_path, env_check=False).check_team(WriterEditor(Counting()), data, agents)
    assert not begun


@pytest.mark.parametrize(
    ("what", "place"),
    [
        ("the metrics", "metrics.jsonl"),
        ("the checkpoint", "checkpoints/iteration-000001"),
        ("the summary", "summary.json"),
    ],
)
def test_a_full_disk_ends_the_run_with_what_could_not_be_written(
    what: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if what == "the metrics":
        (tmp_path / place).symlink_to("/dev/full")
        monkeypatch.setattr(RunDirectory, "set_metrics_aside", lambda folder: None)
    elif what == "the checkpoint":
        monkeypatch.setattr(torch, "save", full)
    else:
        monkeypatch.setattr("drmas_pl.trainer.run_directory.write_atomically", full)
    trainer = make_trainer(tmp_path, max_iterations=1)
    with pytest.raises(StorageError) as caught:
        trainer.fit(TEAM, make_groups(trainer.fabric), make_data())
    saved = f"go on from iteration 1: python tools/train.py resume={tmp_path}"
    unsaved = f"nothing was saved yet, so start again with the same command into {tmp_path}"
    assert str(caught.value) == (
        f"{what} cannot be written to {tmp_path / place}: No space left on device; make room there, or make it writable; "
        f"{saved if what == 'the summary' else unsaved}"
    )
    assert not list(tmp_path.rglob(".writing-*"))


@pytest.mark.parametrize("what", ["the trajectories", "what loggers keep", "the plot"])
def test_without_room_for_what_can_be_missed_the_run_goes_on_and_says_so_once(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if what == "the trajectories":
        monkeypatch.setattr(trainer_module, "write_trajectories", full)
    elif what == "the plot":
        monkeypatch.setattr("drmas_pl.trainer.run_directory.plot_run", full)
    trainer = make_trainer(tmp_path, max_iterations=3, record=("train", "validation"))
    if what == "what loggers keep":
        monkeypatch.setattr(trainer.fabric, "log_dict", full)
    state = trainer.fit(TEAM, make_groups(trainer.fabric), make_data())
    assert state.iteration == 3 and (tmp_path / "summary.json").exists()
    assert [record["iteration"] for record in trainer.folder.read_metrics()] == [0, 1, 2, 3, 3]
    assert caplog.text.count("No space left on device") == 1
    assert caplog.text.count(f"{what} cannot be written to") == caplog.text.count("goes on without them") == 1


def test_a_folder_that_is_removed_ends_the_run_in_one_sentence_and_is_not_made_again(tmp_path: Path) -> None:
    class Remove(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            shutil.rmtree(tmp_path / "run")

    trainer = make_trainer(tmp_path / "run", callbacks=[Remove()], record=("train",))
    with pytest.raises(StorageError) as caught:
        trainer.fit(TEAM, make_groups(trainer.fabric), make_data())
    assert str(caught.value) == (
        f"{tmp_path / 'run'} was removed while the run went on; nothing was saved yet, so start again with the same command "
        f"into {tmp_path / 'run'}"
    )
    assert not (tmp_path / "run").exists()


def test_an_error_of_the_system_about_a_file_of_the_run_is_told_with_what_was_saved(tmp_path: Path) -> None:
    class Broken(Callback):
        def __init__(self, path: Path) -> None:
            self.path = path

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if trainer.iteration == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))

    for place, kind in ((tmp_path / "run" / "x", StorageError), (tmp_path / "elsewhere", OSError)):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        trainer = make_trainer(tmp_path / "run", callbacks=[Broken(place)], checkpoint_every=1)
        with pytest.raises(kind, match="Input/output error") as caught:
            trainer.fit(TEAM, make_groups(trainer.fabric), make_data())
        assert ("go on from iteration 1: " in str(caught.value)) == (kind is StorageError)


def test_failed_allocations_are_named_with_what_lowers_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(words)

    class Hungry(EvenEnv):
        def act(self, action: str) -> StepResult:
            raise MemoryError

    def fit(env: EvenEnv) -> None:
        trainer = make_trainer(tmp_path, env_check=False)
        trainer.fit(WriterEditor(env), make_groups(trainer.fabric), make_data(validation=None))

    with monkeypatch.context() as patch, pytest.raises(OutOfMemory) as caught:
        patch.setattr(trainer_module, "learn", fail)
        fit(EvenEnv())
    assert str(caught.value).startswith("the update ran out of memory ([enforce fail at") and str(
        caught.value
    ).endswith(UPDATE_REMEDY)
    with (
        monkeypatch.context() as patch,
        pytest.raises(OutOfMemory, match=r"the rollout ran out of memory.*max_concurrent"),
    ):
        patch.setattr(SyncRollouts, "next", fail)
        fit(EvenEnv())
    with pytest.raises(
        TrainingStopped, match=r"trajectories failed.*out of memory: .*lower rollout\.max_concurrent"
    ):
        fit(Hungry())
