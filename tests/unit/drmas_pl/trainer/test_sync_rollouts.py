"""Rollouts that are sampled in turns with updates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lightning.fabric import Fabric

from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.trainer.fault_tolerance import StageRetry
from drmas_pl.trainer.rollouts import SyncRollouts, make_collector
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.workers.lifecycle import State
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_groups


def make_rollouts(groups: dict[str, PolicyWorker], folder: Path, **settings: Any) -> SyncRollouts:
    data = make_data()
    data.setup("fit")
    options = RolloutSettings(samples=2, **settings)
    agents = {name: agent for group in groups.values() for name, agent in group.agents.items()}
    collector = make_collector(WriterEditor(EvenEnv()), agents, options)
    return SyncRollouts(
        collector, data, groups, settings=options, credit=None, seed=0, retry=StageRetry([], folder)
    )


def test_an_iteration_is_played_with_the_newest_weights_and_leaves_engines_asleep(tmp_path: Path) -> None:
    groups = make_groups(Fabric(accelerator="cpu", devices=1))
    groups["editor"].weights_version = 3
    rollouts = make_rollouts(groups, tmp_path)
    rollout = rollouts.next(1)
    assert list(rollout.tasks) == list(rollouts.data.tasks_for(1)) and len(rollout.trajectories) == 4
    assert rollout.versions == {"writer": 0, "editor": 3} == rollouts.weights_versions()
    assert {
        turn.weights_version
        for trajectory in rollout.trajectories
        for turn in trajectory.turns
        if turn.agent == "editor"
    } == {3}
    assert {group.state for group in groups.values()} == {State.ASLEEP} and rollouts.drain() is None
    metrics = rollouts.metrics(rollout)
    assert {name: value for name, value in metrics.items() if not name.startswith("time/")} == {
        "train/writer/weights_version": 0.0,
        "train/editor/weights_version": 3.0,
    }
    assert {name for name in metrics if name.startswith("time/")} == {
        *(
            f"time/{group}/{name}"
            for group in groups
            for name in ("engine_busy", "tokens_per_second", "queue_length")
        ),
        "time/longest_trajectory",
        "time/environment_share",
    }
    assert 0 < metrics["time/editor/engine_busy"] <= 1 and metrics["time/writer/tokens_per_second"] > 0
    assert "time/longest_trajectory" not in rollouts.metrics(replace(rollout, timeline=None))


def test_the_time_that_new_weights_took_is_told_once(tmp_path: Path) -> None:
    groups = make_groups(
        Fabric(accelerator="cpu", devices=1),
        engine=lambda name, *parts: TransformersEngine(*parts, copy=True),
    )
    rollouts = make_rollouts(groups, tmp_path)
    groups["writer"].weights_version = 1
    rollout = rollouts.next(0)
    assert rollouts.metrics(rollout)["time/sync"] > 0
    assert rollouts.metrics(rollout)["time/sync"] == 0


@pytest.mark.parametrize("residency", ["all", "one"])
def test_engines_that_wake_one_at_a_time_are_not_idle(tmp_path: Path, residency: Any) -> None:
    rollouts = make_rollouts(make_groups(Fabric(accelerator="cpu", devices=1)), tmp_path, residency=residency)
    assert rollouts.engines_idle is (residency == "all")


def test_settings_reach_the_collector() -> None:
    settings = RolloutSettings(
        max_calls=1,
        env_workers=2,
        env_latency=7,
        env_timeout=9.0,
        max_concurrent=5,
        retries=1,
        max_failed_share=0.5,
    )
    groups = make_groups(Fabric(accelerator="cpu", devices=1))
    agents = {name: agent for group in groups.values() for name, agent in group.agents.items()}
    made = make_collector(WriterEditor(EvenEnv()), agents, settings)
    assert (made.env_latency, made.env_timeout) == (7, 9.0)
    assert [made.max_calls, made.env_workers, made.max_concurrent, made.retries, made.max_failed_share] == [
        1,
        2,
        5,
        1,
        0.5,
    ]
