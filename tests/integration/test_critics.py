"""PPO with critics: whole runs of the toy team, exact resume, and the shipped teams from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drmas_pl.algorithms.gae_estimator import GaeEstimator
from drmas_pl.env import StepResult
from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.optim import OptimizerSettings
from drmas_pl.tools.train import main
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.types import Task
from drmas_pl.workers.build import AgentBinding, build_critics
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.losses import ValueLoss
from drmas_pl.workers.value_worker import ValueWorker, ValueWorkerSettings
from tests.helpers.runs import StopAt, same, timeless, weights
from tests.helpers.toy import EvenEnv, WriterEditor, load, make_data, make_groups, make_trainer

FAST = ValueWorkerSettings(optimizer=OptimizerSettings(lr=1e-2, schedule="cosine"), updates_per_iteration=2)


def run(
    folder: Path,
    *,
    sharing: Any = "shared",
    settings: ValueWorkerSettings = FAST,
    resume: Path | None = None,
    **more: Any,
) -> MultiAgentTrainer:
    """Play a whole PPO run, or the rest of one."""
    names, env, data = more.pop("names", ("writer", "editor")), more.pop("env", None), more.pop("data", None)
    made = make_trainer(folder, **{"estimator": GaeEstimator(), **more})
    groups = make_groups(
        made.fabric,
        names=names,
        agent={"objective": {"dual_clip": None}},
        update=UpdateSettings(updates_per_iteration=2),
    )
    bindings = [AgentBinding(agent, "tiny-1") for group in groups.values() for agent in group.agents.values()]
    critics = build_critics(
        bindings,
        sharing=sharing,
        fabric=made.fabric,
        load=load,
        settings=settings,
        iterations=made.max_iterations,
    )
    made.fit(WriterEditor(env or EvenEnv()), groups, data or make_data(), critics=critics, ckpt_path=resume)
    return made


class Kind(EvenEnv):
    """Every second task pays whatever is said, the others never do."""

    def begin(self, task: Task) -> str:
        self.pays = int(task.id.rpartition("-")[2]) % 2 == 0
        return super().begin(task)

    def act(self, action: str) -> StepResult:
        return StepResult("", float(self.pays), terminated=True, success=self.pays)


def judges(trainer: MultiAgentTrainer) -> dict[str, dict[str, Tensor]]:
    critics: Any = trainer.critics
    return {name: dict(critic.model.named_parameters()) for name, critic in critics.items()}


KINDS = pytest.mark.parametrize(
    ("sharing", "estimator"),
    [("shared", GaeEstimator()), ("per_agent", GaeEstimator(chain="agent", gamma=0.99, whitening="batch"))],
    ids=["shared", "per_agent"],
)


@KINDS
def test_stopping_and_resuming_changes_nothing(tmp_path: Path, sharing: Any, estimator: GaeEstimator) -> None:
    how = {"sharing": sharing, "estimator": estimator, "max_iterations": 3}
    whole = run(tmp_path / "whole", **how)
    run(tmp_path / "part", **how, callbacks=[StopAt(1)])
    resumed = run(tmp_path / "part", **how, resume=tmp_path / "part", names=("editor", "writer"))
    assert same(weights(resumed.groups), weights(whole.groups))
    assert same(judges(resumed), judges(whole)) and timeless(resumed) == timeless(whole)


@pytest.mark.slow
@KINDS
def test_stopping_after_any_iteration_and_resuming_changes_nothing(
    tmp_path: Path, sharing: Any, estimator: GaeEstimator
) -> None:
    how = {"sharing": sharing, "estimator": estimator}
    whole = run(tmp_path / "whole", **how)
    for stop in (1, 3):
        folder = tmp_path / str(stop)
        assert run(folder, **how, callbacks=[StopAt(stop)]).iteration == stop
        resumed = run(folder, **how, resume=folder, names=("editor", "writer"))
        assert same(weights(resumed.groups), weights(whole.groups)) and same(
            judges(resumed), judges(whole)
        ), stop
        assert timeless(resumed) == timeless(whole), stop
    first = run(tmp_path / "none", **how, callbacks=[StopAt(1)])
    assert not same(judges(first), judges(whole))


def test_critics_are_in_checkpoints_and_metrics(tmp_path: Path) -> None:
    trainer = run(tmp_path, sharing="per_agent", max_iterations=2)
    newest = tmp_path / "checkpoints" / "iteration-000002" / "critics"
    assert sorted(path.name for path in newest.iterdir()) == ["editor", "writer"]
    assert json.loads((newest / "editor" / "critic.json").read_text()) == {
        "weights_version": 2,
        "agents": ["editor"],
        "steps": 4,
        "planned_steps": 4,
        "skipped_in_a_row": 0,
    }
    for record in timeless(trainer):
        if "train/reward" not in record:
            continue
        for name in ("writer", "editor"):
            found = {key.rpartition("/")[2] for key in record if key.startswith(f"train/critic/{name}/")}
            assert found >= {"value_loss", "grad_norm", "clipped", "lr", "steps", "skipped"}
            assert record[f"train/{name}/no_signal"] < 1


def test_critics_warm_up_alone(tmp_path: Path) -> None:
    settings = ValueWorkerSettings(optimizer=OptimizerSettings(lr=1e-2), warmup=2)
    before = run(tmp_path / "cold", settings=settings, max_iterations=1)
    still = run(tmp_path / "warm", settings=settings, max_iterations=2)
    moved = run(tmp_path / "hot", settings=settings, max_iterations=3)
    assert same(weights(before.groups), weights(still.groups)) and not same(
        weights(moved.groups), weights(still.groups)
    )
    assert not same(judges(before), judges(still)) and still.state.idle == 0
    assert [group.weights_version for group in moved.groups.values()] == [1, 1]


def test_a_checkpoint_with_other_critics_is_refused(tmp_path: Path) -> None:
    run(tmp_path, callbacks=[StopAt(1)])
    with pytest.raises(
        CheckpointError,
        match=r"has critics \['shared'\], but this run \['editor', 'writer'\]; use the same critic settings",
    ):
        run(tmp_path, sharing="per_agent", resume=tmp_path)


def test_evaluation_needs_no_critic(tmp_path: Path) -> None:
    run(tmp_path, callbacks=[StopAt(1)])
    trainer = make_trainer(tmp_path, estimator=GaeEstimator())
    result = trainer.validate(
        WriterEditor(EvenEnv()), make_groups(trainer.fabric), make_data(), ckpt_path=tmp_path
    )
    assert 0 <= result.sampled <= 1


def test_values_without_critics_are_refused_before_anything_is_played(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "run", estimator=GaeEstimator())
    with pytest.raises(ConfigError, match="needs a critic for every trained agent"):
        trainer.fit(WriterEditor(EvenEnv()), make_groups(trainer.fabric), make_data())
    assert not (tmp_path / "run").exists()


def test_a_critic_that_is_not_finite_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = ValueLoss.compute

    def broken(self: ValueLoss, *args: Any) -> dict[str, Tensor]:
        found = compute(self, *args)
        return {**found, "loss": found["loss"] * float("nan")}

    monkeypatch.setattr(ValueLoss, "compute", broken)
    settings = ValueWorkerSettings(max_skips=1)
    with pytest.raises(Exception, match="critic 'shared' skipped 1 minibatches in a row"):
        run(tmp_path, settings=settings)


@pytest.mark.slow
def test_the_critic_of_a_fixed_policy_learns_what_its_turns_are_worth(tmp_path: Path) -> None:
    # the policy stands still, since only its critic warms up
    settings = ValueWorkerSettings(optimizer=OptimizerSettings(lr=1e-2), warmup=15, epochs=2)
    trainer = run(
        tmp_path, settings=settings, max_iterations=15, env=Kind(), data=make_data(tasks_per_iteration=6)
    )
    records = [record for record in timeless(trainer) if "train/reward" in record]
    losses, explained = (
        [record[f"train/critic/shared/{name}"] for record in records]
        for name in ("value_loss", "explained_variance")
    )
    assert sum(losses[-3:]) < 0.3 * sum(losses[:3]), losses
    assert explained[0] == 0 and min(explained[-3:]) > 0.5, explained


SHORT = [
    "trainer.max_iterations=1",
    "data.limit_validation=4",
    "data.tasks_per_iteration=6",
    "rollout.samples=4",
    "logger=none",
]
PPO = ["advantage=gae", "critic=value_head", "objective=ppo"]


@pytest.mark.parametrize(
    ("env", "agents"), [("math", "loop"), pytest.param("search", "hierarchy", marks=pytest.mark.slow)]
)
def test_shipped_teams_learn_with_ppo_from_the_command_line(
    env: str, agents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([f"+env={env}", f"+agents={agents}", *PPO, *SHORT, "output_dir=run"]) == 0
    out = capsys.readouterr()
    assert "critic 'shared' (" in out.out and "Traceback" not in out.out + out.err
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert any(
        record.get("train/critic/shared/steps") == 1 and record.get("train/group/shared/steps") == 1
        for record in metrics
    )
    assert (tmp_path / "run/checkpoints/iteration-000001/critics/shared/model.safetensors").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["advantage=gae"],
            "needs a critic for every trained agent, but ['solver', 'verifier'] have none; use critic=value_head",
        ),
        (
            ["critic=value_head"],
            "critics ['shared'] are configured, but GroupNormalizer does not read values",
        ),
        (
            [*PPO, "critic.value_clib=0.1"],
            "unknown setting 'critic.value_clib'; did you mean 'critic.value_clip'?",
        ),
        ([*PPO, "critic.value_clip=-1"], "value_clip must be positive"),
        ([*PPO, "critic.sharing=both"], "critic.sharing: Input should be 'shared' or 'per_agent'"),
        ([*PPO, "critic.optimizer.lr=abc"], "critic.optimizer.lr: Input should be a valid number"),
        ([*PPO, "critic.model=tiny_random"], "reads other tokens than agent"),
        ([*PPO, "advantage.chain=agent", "credit=return_to_go"], "use credit=team credit.alpha=1"),
        (["critic.warmup=2"], "unknown setting 'critic.warmup'"),
    ],
)
def test_what_cannot_work_is_one_line_and_leaves_nothing(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["+env=math", "+agents=loop", *words, *SHORT, "output_dir=run"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err + captured.out
    assert list(tmp_path.iterdir()) == []


def test_a_trained_run_is_evaluated_without_its_critic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drmas_pl.tools.evaluate import main as evaluate

    monkeypatch.chdir(tmp_path)
    few = ["data.tasks_per_iteration=2", "rollout.samples=2"]
    assert main(["+env=math", "+agents=loop", *PPO, *SHORT, *few, "output_dir=run"]) == 0
    monkeypatch.setattr(ValueWorker, "__init__", lambda *args, **more: pytest.fail("a critic was built"))
    assert evaluate(["checkpoint=run", "split=validation", "data.limit_validation=2"]) == 0
    assert torch.load(
        tmp_path / "run/checkpoints/iteration-000001/critics/shared/optimizer.pt", weights_only=True
    )
