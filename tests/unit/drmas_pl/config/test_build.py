"""The data of a run, from files, from targets, or from the environment itself."""

from __future__ import annotations

import json
import logging
import sys
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.trainer.states import TrainerStatus

from drmas_pl.config.build import (
    build_data,
    build_env,
    build_run,
    build_team,
    build_trainer,
    end_wandb,
    run_length,
)
from drmas_pl.data.module import TaskDataModule
from drmas_pl.errors import ConfigError
from drmas_pl.testing.conformance import probe_team
from drmas_pl.types import Task
from tests.helpers.launching import configure
from tests.helpers.pace import allowed
from tests.helpers.toy import EvenEnv, make_tasks


@cache
def base() -> dict[str, Any]:
    own = ("env._target_=tests.helpers.toy.EvenEnv", "agents._target_=tests.helpers.toy.WriterEditor")
    return configure("+env=custom", "+agents=custom", *own, "output_dir=run")


def config(**data: Any) -> dict[str, Any]:
    return {**base(), "data": {**base()["data"], **data}}


@pytest.mark.parametrize(
    ("epochs", "limit", "iterations"),
    [
        (None, 60, 60),
        (2, None, 5),
        (2, 60, 5),
        (2, 4, 4),
        (0.5, None, 2),
        (1, None, 3),
        (0.001, None, 1),
    ],
    ids=str,
)
def test_the_length_of_a_run_in_epochs_or_iterations(
    epochs: float | None, limit: int | None, iterations: int
) -> None:
    data = TaskDataModule(train=make_tasks(10), tasks_per_iteration=4)
    assert run_length({"max_epochs": epochs, "max_iterations": limit}, data) == iterations


def test_a_limit_that_cuts_epochs_short_is_said(caplog: pytest.LogCaptureFixture) -> None:
    data = TaskDataModule(train=make_tasks(10), tasks_per_iteration=4)
    run_length({"max_epochs": 2, "max_iterations": 4}, data)
    assert (
        "max_iterations=4 ends the run before trainer.max_epochs=2, which takes 5 iterations" in caplog.text
    )


def test_a_run_needs_a_length() -> None:
    data = TaskDataModule(train=make_tasks(10), tasks_per_iteration=4)
    with pytest.raises(ConfigError, match="are both null; give one of them"):
        run_length({"max_epochs": None, "max_iterations": None}, data)


def test_a_run_of_epochs_is_planned_in_iterations(tmp_path: Path) -> None:
    words = ("model=tiny_random", "trainer.max_epochs=2", "data.tasks_per_iteration=100", "threads=null")
    built = build_run(configure("+env=math", "+agents=loop", *words, f"output_dir={tmp_path}"))
    built.close()
    tasks = len(built.data.tasks("train"))
    assert built.trainer.max_iterations == -(-2 * tasks // 100)
    assert built.trainer.hparams["trainer"]["max_iterations"] == built.trainer.max_iterations


@pytest.mark.parametrize("epochs", [0, -1, True, "two", float("inf"), float("nan")], ids=str)
def test_epochs_must_be_a_positive_number(epochs: Any) -> None:
    data = TaskDataModule(train=make_tasks(10), tasks_per_iteration=4)
    with pytest.raises(ConfigError, match=r"trainer\.max_epochs must be a positive number"):
        run_length({**base()["trainer"], "max_epochs": epochs}, data)


def more_tasks(count: int) -> tuple[Task, ...]:
    return make_tasks(count, "more")


def test_the_files_of_every_model_are_looked_at_before_the_first_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    run = configure(
        "+env=math",
        "+agents=loop",
        f"output_dir={tmp_path}",
        f"agents.roles.verifier.model={tmp_path / 'model'}",
    )
    monkeypatch.setattr("drmas_pl.config.roles.load_model", None)
    with pytest.raises(ConfigError, match="model is empty; download or copy the model again"):
        build_run(run)


def test_an_environments_own_tasks_are_played_where_no_file_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="drmas_pl"):
        data = build_data(config(), EvenEnv(make_tasks(5)), ("train", "validation"))
    assert data.tasks("train") == data.tasks("validation") == make_tasks(5) and not data.tasks("test")
    assert data.tasks_per_iteration == 5 and "the environment's own 5 tasks" in caplog.text
    data = build_data(
        config(train={"_target_": f"{__name__}.more_tasks", "count": 30}),
        EvenEnv(make_tasks(5)),
        ("train", "validation"),
    )
    assert data.tasks("train") == more_tasks(30) and data.tasks("validation") == make_tasks(5)


def test_files_are_read_and_the_seed_reaches_the_schedule(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        rows = [json.dumps({"question": f"{split} {index}?", "answer": index}) for index in range(24)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "validation")}
    first = build_data(config(**files), EvenEnv(), ("train", "validation"))
    other = build_data({**config(**files), "seed": 1}, EvenEnv(), ("train", "validation"))
    assert len(first.tasks("train")) == 24 and first.tasks_for(0) != other.tasks_for(0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "data.train names no tasks; set it to a JSONL or Parquet file"),
        ({"train": {"_target_": f"{__name__}.more_tasks", "count": 3}}, "data.validation names no tasks"),
        (
            {"train": {"_target_": f"{__name__}.more_tasks", "count": "x"}},
            "data.train.count: Input should be a valid integer",
        ),
        ({"train": 3}, "data.train: "),
        ({"balance": "fair"}, "data.balance: Input should be 'none' or 'data_source', got 'fair'"),
        ({"limit_train": 0}, "data: TaskDataModule rejects its settings: limit_train must be at least 1"),
    ],
)
def test_data_that_cannot_be_played_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_data(config(**data), EvenEnv(), ("train", "validation"))


def test_more_tasks_per_iteration_than_tasks_are_refused() -> None:
    few = {split: {"_target_": f"{__name__}.more_tasks", "count": 3} for split in ("train", "validation")}
    with pytest.raises(
        ConfigError, match=r"data.tasks_per_iteration is 24, but there are only 3 training tasks"
    ):
        build_data(config(**few, allow_overlap=True), EvenEnv(), ("train", "validation"))
    assert len(build_data(config(test=few["train"]), EvenEnv(), ("test",)).tasks("test")) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"seed": "abc"},
            "seed: Input should be a valid integer, unable to parse string as an integer, got 'abc'",
        ),
        ({"sharing": "both"}, "sharing: Input should be 'shared', 'per_agent' or 'lora', got 'both'"),
        ({"resume": 3}, "resume: Input should be a valid string, got 3"),
        ({"evaluation": {**base()["evaluation"], "temperature": "hot"}}, "evaluation.temperature: "),
        ({"rollout": {**base()["rollout"], "samples": 0}}, "rollout.samples must be at least 1, got 0"),
    ],
)
def test_settings_of_the_run_are_checked_before_anything_is_loaded(
    changes: dict[str, Any], message: str
) -> None:
    run = {**base(), **changes}
    run["data"] = {
        **run["data"],
        "train": {"_target_": f"{__name__}.more_tasks", "count": 30},
        "allow_overlap": True,
    }
    run["data"]["validation"] = run["data"]["train"]
    with pytest.raises(ConfigError, match=message):
        build_run(run)


@pytest.mark.parametrize(("words", "count"), [((), 1), (("threads=2",), 2), (("model.threads=null",), None)])
def test_torch_gets_the_threads_of_the_run_or_else_of_the_model(
    words: tuple[str, ...], count: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    build_run(configure("+env=math", "+agents=loop", "logger=none", f"output_dir={tmp_path}", *words))
    assert asked == ([] if count is None else [count])


def test_too_few_threads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="threads must be at least 1 or null, got 0"):
        build_run(configure("+env=math", "+agents=loop", f"output_dir={tmp_path}", "threads=0"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("advantage=pass_at_k", "rollout.samples=4"),
            r"advantage.k=4 with rollout.samples=4.*raise rollout.samples",
        ),
        (("trainer.precision=16-mixed",), r"precision=16-mixed cannot be trained with.*precision=bf16-mixed"),
    ],
)
def test_what_cannot_learn_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr("drmas_pl.config.build.load_named", lambda *args: loaded.append(args))
    run = configure("+env=math", "+agents=loop", f"output_dir={tmp_path}", "logger=none", *words)
    with pytest.raises(ConfigError, match=message):
        build_run(run)
    assert not loaded


def test_what_is_evaluated_need_not_be_able_to_learn(tmp_path: Path) -> None:
    run = configure(
        "+env=math",
        "+agents=loop",
        f"output_dir={tmp_path}",
        "advantage=pass_at_k",
        "rollout.samples=4",
        "logger=none",
    )
    build_run(run, splits=("validation",)).close()


@pytest.mark.parametrize(("kind", "kept"), [("TQDMProgressBar", 1), ("LambdaCallback", 2)])
def test_a_configured_progress_bar_takes_the_place_of_the_shipped_one(
    tmp_path: Path, kind: str, kept: int
) -> None:
    words = (
        f"trainer.callbacks=[{{_target_: lightning.pytorch.callbacks.{kind}}}]",
        f"output_dir={tmp_path}",
    )
    trainer = build_trainer(configure("+env=math", "+agents=loop", *words), [])
    assert len(trainer.callbacks) == kept and type(trainer.callbacks[-1]).__name__ == kind


@pytest.mark.parametrize(("status", "code"), [(TrainerStatus.FINISHED, 0), (TrainerStatus.INTERRUPTED, 1)])
def test_the_run_of_wandb_is_ended_with_the_outcome(
    monkeypatch: pytest.MonkeyPatch, status: TrainerStatus, code: int
) -> None:
    ended: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(finish=lambda **how: ended.append(how)))
    logger = object.__new__(WandbLogger)
    for loggers in ([logger], []):
        end_wandb(SimpleNamespace(loggers=loggers, state=SimpleNamespace(status=status)))  # type: ignore[arg-type]
    assert ended == [{"exit_code": code}]


@pytest.mark.parametrize(
    "words",
    [
        ("+env=search", "+agents=hierarchy"),
        ("+env=math", "+agents=loop"),
        ("+env=code", "+agents=coder_tester"),
    ],
    ids=lambda words: words[0],
)
def test_the_check_before_a_run_takes_no_time_worth_speaking_of(words: tuple[str, str]) -> None:
    configured = configure(*words, "output_dir=run")
    env = build_env(configured["env"])
    team = build_team(configured["agents"], env)
    tasks = build_data(configured, env, ("train",)).tasks("train")
    started = time.perf_counter()
    probe_team(team, [tasks[0], tasks[-1]])
    assert time.perf_counter() - started < allowed(0.5)


@pytest.mark.parametrize("target", ["collections.OrderedDict", "tests.helpers.toy.EvenEnv"])
def test_what_is_no_team_is_refused(target: str) -> None:
    node = {"_target_": target}
    with pytest.raises(ConfigError, match=rf"agents(\._target_={target} must give a team|: .*rejects)"):
        build_team(node, EvenEnv())
