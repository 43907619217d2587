"""New weights travel to one engine while the next group learns."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from lightning.fabric import Fabric

from drmas_pl.engines.base import Engine
from drmas_pl.errors import EngineError
from drmas_pl.trainer.iteration import update_workers
from drmas_pl.workers.background_weight_sync import BackgroundWeightSync
from drmas_pl.workers.learner import UpdateReport, UpdateSettings
from drmas_pl.workers.lifecycle import State
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.toy import make_groups

SEEDS = {"writer": 1, "editor": 2}


class Served(Engine):
    """Counts how often it is given weights, and by which thread."""

    own_weights = True

    def __init__(self) -> None:
        self.threads: list[str] = []

    def generate(self, requests: Any) -> Any:
        return []

    def sync(self, version: int) -> None:
        super().sync(version)
        self.threads.append(threading.current_thread().name)


def served(group: str, policy: Any, tokenizer: Any) -> Engine:
    return Served()


@pytest.fixture
def groups(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> dict[str, PolicyWorker]:
    """Groups whose updates change nothing but the version."""

    def update(group: PolicyWorker, *args: Any, **kwargs: Any) -> UpdateReport:
        group.weights_version += 1
        return UpdateReport(steps=1)

    monkeypatch.setattr(PolicyWorker, "update", update)
    return make_groups(fabric, engine=served)


def learn(groups: dict[str, PolicyWorker], *, idle: bool = True) -> None:
    with BackgroundWeightSync(idle=idle) as sync:
        update_workers(list(groups.values()), {name: {} for name in groups}, SEEDS, learnt=sync.begin)


def test_one_groups_weights_travel_while_the_next_learns(
    groups: dict[str, PolicyWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    learns, arrived = threading.Event(), threading.Event()
    writer, editor = groups["writer"], groups["editor"]
    sync, update = writer.engine.sync, PolicyWorker.update

    def syncing(version: int) -> None:
        assert learns.wait(30) and writer.state is State.ROLLOUT
        sync(version)
        arrived.set()

    def updating(group: PolicyWorker, *args: Any, **kwargs: Any) -> UpdateReport:
        if group is editor:
            learns.set()
            assert arrived.wait(30)
        return update(group, *args, **kwargs)

    monkeypatch.setattr(writer.engine, "sync", syncing)
    monkeypatch.setattr(PolicyWorker, "update", updating)
    learn(groups)
    assert {group.state for group in groups.values()} == {State.ASLEEP}


def test_there_is_one_sync_per_update_and_none_when_the_rollout_opens(
    groups: dict[str, PolicyWorker],
) -> None:
    for _ in range(3):
        learn(groups)
        for group in groups.values():
            with group.rollout() as engine:
                assert engine.weights_version == group.weights_version
    for group in groups.values():
        assert len(group.engine.threads) == 3 and all(
            name.startswith("weight-sync") for name in group.engine.threads
        )  # type: ignore[attr-defined]
        assert group.sync_seconds > 0


def test_a_group_that_has_not_changed_is_left_alone(groups: dict[str, PolicyWorker]) -> None:
    with BackgroundWeightSync(idle=True) as sync:
        sync.begin(groups["writer"])
    assert groups["writer"].engine.threads == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("reason", ["busy", "no weights of its own", "offload"])
def test_otherwise_new_weights_wait_for_the_next_rollout(
    groups: dict[str, PolicyWorker], fabric: Fabric, reason: str
) -> None:
    if reason == "offload":
        groups = make_groups(fabric, engine=served, update=UpdateSettings(offload="optimizer"))
    for group in groups.values():
        group.engine.own_weights = reason != "no weights of its own"
    learn(groups, idle=reason != "busy")
    engine: Any = groups["writer"].engine
    assert engine.threads == []
    with groups["writer"].rollout():
        assert engine.threads == [threading.current_thread().name]


def test_a_failure_ends_the_update_after_all_groups_have_learnt(
    groups: dict[str, PolicyWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(version: int) -> None:
        raise EngineError("on purpose")

    monkeypatch.setattr(groups["writer"].engine, "sync", fail)
    with pytest.raises(EngineError, match="on purpose"):
        learn(groups)
    assert groups["editor"].weights_version == 1 and groups["writer"].state is State.ASLEEP


def test_an_error_while_groups_learn_is_not_hidden(
    groups: dict[str, PolicyWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(version: int) -> None:
        raise EngineError("less important")

    monkeypatch.setattr(groups["writer"].engine, "sync", fail)
    groups["writer"].weights_version = 1
    with pytest.raises(ZeroDivisionError), BackgroundWeightSync(idle=True) as sync:
        sync.begin(groups["writer"])
        raise ZeroDivisionError
