"""The registry of metrics and what runs log name the same things.

That every name is registered is checked wherever a run of these tests logs, see ``conftest.py``: search with every preset, the loop
with PPO, LoRA, playing ahead. Here is the other direction.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from drmas_pl.algorithms.gae_estimator import GaeEstimator
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.env import StepResult
from drmas_pl.trainer.metric_registry import SECTIONS
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.workers.build import AgentBinding, build_critics
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.value_worker import ValueWorkerSettings
from tests.helpers.metric_names import explained, unregistered
from tests.helpers.runs import run
from tests.helpers.toy import EvenEnv, WriterEditor, load, make_data, make_groups, make_tasks, make_trainer


def copying(group: str, policy: Any, tokenizer: Any) -> TransformersEngine:
    return TransformersEngine(policy, tokenizer, copy=True)


def ahead_with_every_term(folder: Path) -> MultiAgentTrainer:
    objective = {"kl_coef": 0.1, "correction": "token"}
    return run(
        folder,
        groups={
            "engine": copying,
            "agent": {"objective": objective},
            "update": UpdateSettings(old_logp="recompute"),
        },
        rollout=RolloutSettings(samples=4, max_staleness=1),
        evaluation=EvaluationSettings(samples=2, pass_at=(2,)),
        max_iterations=3,
    )


def with_critic(folder: Path) -> MultiAgentTrainer:
    trainer = make_trainer(folder, estimator=GaeEstimator(), max_iterations=1)
    groups = make_groups(trainer.fabric, sharing="shared", agent={"objective": {"dual_clip": None}})
    bindings = [AgentBinding(agent, "tiny-1") for group in groups.values() for agent in group.agents.values()]
    critics = build_critics(
        bindings,
        sharing="shared",
        fabric=trainer.fabric,
        load=load,
        settings=ValueWorkerSettings(),
        iterations=1,
    )
    trainer.fit(WriterEditor(EvenEnv()), groups, make_data(), critics=critics)
    return trainer


class Paying(EvenEnv):
    """Pays the editor for every action."""

    def act(self, action: str) -> StepResult:
        return replace(super().act(action), rewards={"editor": 0.5})


def with_own_rewards(folder: Path) -> MultiAgentTrainer:
    trainer = make_trainer(folder, max_iterations=1)
    # of two sources, both in every iteration
    data = make_data(train=(*make_tasks(1), *make_tasks(1, "other")))
    trainer.fit(WriterEditor(Paying()), make_groups(trainer.fabric, sharing="shared"), data)
    return trainer


def test_every_registered_metric_is_logged(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "plain"),
        ahead_with_every_term(tmp_path / "a"),
        with_critic(tmp_path / "b"),
        with_own_rewards(tmp_path / "c"),
    ]
    names = {name for made in runs for record in made.folder.read_metrics() for name in record}
    logged = {metric.pattern for metric in explained(names).values() if metric is not None}
    assert {metric.pattern for section in SECTIONS for metric in section.metrics} - logged == set()


def test_a_name_that_nobody_explains_is_noticed() -> None:
    names = ["iteration", "train/reward", "train/tries", "train/writer/novelty", "train/group/a/novelty"]
    assert unregistered(names) == {"train/writer/novelty", "train/group/a/novelty"}
