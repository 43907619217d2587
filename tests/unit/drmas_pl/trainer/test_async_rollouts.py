"""The pieces of playing ahead; whole runs are in tests/integration/test_ahead.py."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from lightning.fabric import Fabric

from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import BatchError, ConfigError, TrainingStopped
from drmas_pl.trainer.async_rollouts import AsyncRollouts, check_groups, check_staleness
from drmas_pl.trainer.fault_tolerance import StageRetry
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.trainer.sync_rollouts import make_collector
from drmas_pl.workers.lifecycle import State
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_groups

SETTINGS = RolloutSettings(samples=2, staleness=1)


class Gate(TransformersEngine):
    """Generates once it may."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts, copy=True)
        self.open, self.asked = threading.Event(), 0
        self.open.set()

    def generate(self, requests: Any) -> Any:
        self.asked += 1
        assert self.open.wait(30)
        return super().generate(requests)


@pytest.fixture
def groups() -> dict[str, PolicyWorker]:
    return make_groups(Fabric(accelerator="cpu", devices=1), engine=lambda name, *parts: Gate(*parts))


def make_player(groups: dict[str, PolicyWorker], tmp_path: Any, **more: Any) -> AsyncRollouts:
    data = make_data()
    data.setup("fit")
    agents = {name: agent for group in groups.values() for name, agent in group.agents.items()}
    collector = make_collector(WriterEditor(EvenEnv()), agents, SETTINGS)
    options: dict[str, Any] = {
        "last": 3,
        "settings": SETTINGS,
        "credit": None,
        "seed": 0,
        "recovery": StageRetry([], tmp_path),
        **more,
    }
    return AsyncRollouts(collector, data, groups, **options)


def played(drawn: Any) -> list[str]:
    return [task.id for task in drawn.tasks]


def test_iterations_come_in_order_and_none_after_the_last_is_played(
    groups: dict[str, PolicyWorker], tmp_path: Any
) -> None:
    player = make_player(groups, tmp_path)
    for index in range(3):
        assert played(player.take(index)) == [task.id for task in player.data.tasks_for(index)]
        assert {group.state for group in groups.values()} == {State.AHEAD if index < 2 else State.ASLEEP}
    assert player.finish() is None
    player.stop()


def test_what_is_finished_early_is_kept_for_its_iteration(
    groups: dict[str, PolicyWorker], tmp_path: Any
) -> None:
    player = make_player(groups, tmp_path)
    player.take(0)
    kept = player.finish()
    assert (
        kept is not None
        and player.finish() is kept
        and {group.state for group in groups.values()} == {State.ASLEEP}
    )
    assert player.take(1) is kept
    player.stop()


def test_an_earlier_part_of_the_run_may_have_played_already(
    groups: dict[str, PolicyWorker], tmp_path: Any
) -> None:
    first = make_player(groups, tmp_path)
    first.take(0)
    kept = first.finish()
    first.stop()
    second = make_player(groups, tmp_path, kept=kept)
    assert second.take(1) is kept and {group.state for group in groups.values()} == {State.AHEAD}
    second.stop()


def test_stopping_ends_with_the_next_request(groups: dict[str, PolicyWorker], tmp_path: Any) -> None:
    player = make_player(groups, tmp_path)
    player.take(0)
    player.finish()
    player._kept = None
    engines = [cast(Gate, group.engine) for group in groups.values()]
    for engine in engines:
        engine.open.clear()
    before = sum(engine.asked for engine in engines)
    player._begin(1)
    player._stopped.set()
    for engine in engines:
        engine.open.set()
    with pytest.raises(TrainingStopped, match="the run ended while its next iteration was played"):
        player.finish()
    assert sum(engine.asked for engine in engines) <= before + 1
    player.stop()
    assert {group.state for group in groups.values()} == {State.ASLEEP}


@pytest.mark.parametrize(("played_with", "newest"), [(0, 0), (0, 1), (4, 5)])
def test_weights_may_be_one_update_old(played_with: int, newest: int) -> None:
    check_staleness({"a": played_with}, {"a": newest})


@pytest.mark.parametrize(("played_with", "newest"), [(0, 2), (1, 0)])
def test_older_weights_are_an_error(played_with: int, newest: int) -> None:
    with pytest.raises(
        BatchError,
        match=f"'a' spoke with weights {played_with} but learns at {newest}; expected at most 1 update apart",
    ):
        check_staleness({"a": played_with}, {"a": newest})


def test_groups_of_a_cluster_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"a process of cluster=ray does one thing at a time; use cluster=local, or rollout.staleness=0",
    ):
        check_groups({"a": cast(Any, object())}, "all")
