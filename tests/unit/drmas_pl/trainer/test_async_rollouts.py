"""The pieces of asynchronous rollouts; whole runs are in tests/integration/test_ahead.py."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lightning.fabric import Fabric

from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import ConfigError, TrainingStopped
from drmas_pl.rollout.played_ahead import PlayedAhead
from drmas_pl.trainer.fault_tolerance import StageRetry
from drmas_pl.trainer.rollouts import (
    AsyncRollouts,
    check_background_generation,
    make_collector,
)
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.workers.lifecycle import State
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_groups

SETTINGS = RolloutSettings(samples=2, max_staleness=1)


class Gate(TransformersEngine):
    """Generates once it may."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts, copy=True)
        self.open, self.asked = threading.Event(), 0
        self.open.set()

    def begin_step(self) -> Any:
        self.asked += 1
        assert self.open.wait(30)
        return super().begin_step()


@pytest.fixture
def groups() -> dict[str, PolicyWorker]:
    return make_groups(Fabric(accelerator="cpu", devices=1), engine=lambda name, *parts: Gate(*parts))


def make_rollouts(groups: dict[str, PolicyWorker], tmp_path: Any, **more: Any) -> AsyncRollouts:
    data = make_data()
    data.setup("fit")
    agents = {name: agent for group in groups.values() for name, agent in group.agents.items()}
    collector = make_collector(WriterEditor(EvenEnv()), agents, SETTINGS)
    options: dict[str, Any] = {
        "max_iterations": 3,
        "settings": SETTINGS,
        "credit": None,
        "seed": 0,
        "retry": StageRetry([], tmp_path),
        **more,
    }
    return AsyncRollouts(collector, data, groups, **options)


def samples(played: Any) -> list[tuple[str, int, Any]]:
    """What was said in each sample of one iteration."""
    finished = (
        played.finished
        if isinstance(played, PlayedAhead)
        else {0: {n: t for n, t in enumerate(played.trajectories)}}
    )
    (found,) = finished.values()
    return sorted(
        (trajectory.task.id, trajectory.sample, tuple(turn.response_ids for turn in trajectory.turns))
        for trajectory in found.values()
    )


def played(rollout: Any) -> list[str]:
    return [task.id for task in rollout.tasks]


def test_iterations_come_in_order_and_none_after_the_last_is_played(
    groups: dict[str, PolicyWorker], tmp_path: Any
) -> None:
    rollouts = make_rollouts(groups, tmp_path)
    for index in range(3):
        assert played(rollouts.next(index)) == [task.id for task in rollouts.data.tasks_for(index)]
        assert {group.state for group in groups.values()} == {State.AHEAD if index < 2 else State.ASLEEP}
    assert rollouts.drain() is None
    rollouts.close()


def test_what_is_finished_early_is_kept_for_its_iteration(
    groups: dict[str, PolicyWorker], tmp_path: Any
) -> None:
    rollouts = make_rollouts(groups, tmp_path)
    rollouts.next(0)
    kept = rollouts.drain()
    assert kept is not None and kept.iterations == [1] and not kept.begun
    assert rollouts.drain() == kept and {group.state for group in groups.values()} == {State.ASLEEP}
    assert samples(rollouts.next(1)) == samples(kept)
    rollouts.close()


def test_an_earlier_part_of_the_run_may_have_played_already(
    groups: dict[str, PolicyWorker], tmp_path: Any
) -> None:
    first = make_rollouts(groups, tmp_path)
    first.next(0)
    kept = first.drain()
    first.close()
    assert kept is not None
    second = make_rollouts(groups, tmp_path)
    second.restore(kept)
    assert second.drain() == kept
    assert samples(second.next(1)) == samples(kept)
    assert {group.state for group in groups.values()} == {State.AHEAD}
    second.close()


def test_stopping_ends_with_the_batch_that_is_generated(
    groups: dict[str, PolicyWorker], tmp_path: Any
) -> None:
    rollouts = make_rollouts(groups, tmp_path)
    engines = [cast(Gate, group.engine) for group in groups.values()]
    for engine in engines:
        engine.open.clear()
    before = sum(engine.asked for engine in engines)
    rollouts._begin_stretch(0, goal=0)
    rollouts._stop.set_result(None)
    for engine in engines:
        engine.open.set()
    with pytest.raises(TrainingStopped, match="the run ended while trajectories were played"):
        rollouts.drain()
    assert sum(engine.asked for engine in engines) <= before + 1
    rollouts.close()
    assert {group.state for group in groups.values()} == {State.ASLEEP}


def test_groups_of_a_cluster_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"a process of cluster=ray does one thing at a time; use engine=sglang with engine.release=nothing",
    ):
        check_background_generation(
            {"a": cast(Any, SimpleNamespace(fabric=None, generates_while_training=False))}, SETTINGS
        )
