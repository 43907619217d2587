"""Workers with ranks of their own learn at the same time, in their phases, and come back when they are lost."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from drmas_pl.cluster.rank import RankInfo
from drmas_pl.cluster.ray_actor_group import RayActorGroup
from drmas_pl.cluster.remote import RemotePolicyWorker, RemoteValueWorker
from drmas_pl.errors import GroupLost, LifecycleError
from drmas_pl.trainer.iteration import update_workers
from drmas_pl.workers.build import ValueWorkerPlan, WorkerPlan, plan_groups
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.value_worker import ValueWorkerSettings
from tests.helpers.toy import load, make_bindings


class FakeRay:
    """Two processes per actor group, which write down what they are asked, and answer when somebody waits for them."""

    def __init__(self, *labels: str) -> None:
        self.diary: list[str] = []
        self.labels = labels
        self.placement = SimpleNamespace(assignments={label: (0, 1) for label in labels})

    def start(self, actor_group: str, *, members: int) -> list[Any]:
        return [SimpleNamespace(**{name: self._method(name) for name in self._METHODS}) for _ in range(2)]

    def end(self, actors: Sequence[Any]) -> None:
        self.diary.append("end")

    def share(self, value: Any) -> Any:
        return value

    def all_done(self, refs: Sequence[Any]) -> bool:
        return True

    def collect(self, refs: Sequence[Any], stage: str, *, tasks: Sequence[str] = ()) -> list[Any]:
        if stage == "update":
            self.diary.append(f"wait for {refs[0][0]}")
        return [ref[1] for ref in refs]

    _METHODS = (
        "address",
        "join",
        "enter",
        "leave",
        "update",
        "values",
        "load",
        "restore",
        "snapshot",
        "close",
    )

    def _method(self, name: str) -> Any:
        info = RankInfo("cpu", "here", (), load("tiny-1")[1], 3)
        answers = {
            "join": dict.fromkeys(self.labels, info),
            "update": (UpdateReport(steps=1), 5),
            "load": 7,
            "restore": 8,
        }

        def remote(*args: Any, **kwargs: Any) -> Any:
            label = args[0] if args and isinstance(args[0], str) else ""
            self.diary.append(f"{name} {label}".strip())
            return label, answers.get(name)

        return SimpleNamespace(remote=remote)


def remote(kind: type[Any], plan: WorkerPlan, ray: FakeRay, **options: Any) -> Any:
    pool: Any = ray
    spec: Any = SimpleNamespace(parallel="ddp")
    worker = kind(
        plan,
        actor_group=RayActorGroup([plan.label], spec, pool=pool),
        **{"timeout": 1.0, "max_retries": 2, "owns_devices": True, **options},
    )
    worker.monitor = ray
    worker.wait()
    return worker


def critic_plan(name: str) -> ValueWorkerPlan:
    return ValueWorkerPlan(name, "tiny-1", (name,), ValueWorkerSettings())


def test_several_critics_learn_side_by_side() -> None:
    ray = FakeRay("critic-a", "critic-b")
    critics = [remote(RemoteValueWorker, critic_plan(name), ray) for name in "ab"]
    ray.diary.clear()
    reports = update_workers(critics, {"a": [], "b": []}, {"a": 1, "b": 2})
    assert [line for line in ray.diary if "update" in line or "wait" in line] == [
        *["update critic-a"] * 2,
        *["update critic-b"] * 2,
        *["wait for critic-a", "wait for critic-b"],
    ]
    assert {name: report.steps for name, report in reports.items()} == {"a": 1, "b": 1}
    assert [critic.weights_version for critic in critics] == [5, 5]


def test_critics_on_the_same_devices_learn_in_turns() -> None:
    ray = FakeRay("critic-a", "critic-b")
    critics = [remote(RemoteValueWorker, critic_plan(name), ray, owns_devices=False) for name in "ab"]
    ray.diary.clear()
    update_workers(critics, {"a": [], "b": []}, {"a": 1, "b": 2})
    assert [line for line in ray.diary if "wait" in line or "enter" in line] == [
        *["enter critic-a", "enter critic-a", "wait for critic-a"],
        *["enter critic-b", "enter critic-b", "wait for critic-b"],
    ]


@pytest.mark.parametrize("kind", ["policy", "value"])
def test_a_remote_worker_learns_in_its_phase_and_knows_the_version_of_its_weights(
    kind: str, tmp_path: Any
) -> None:
    ray = FakeRay("writer", "critic-writer")
    if kind == "policy":
        plans = plan_groups(make_bindings(("writer",)), sharing="per_agent")
        worker, owner = remote(RemotePolicyWorker, plans[0], ray), "worker group 'writer'"
    else:
        worker, owner = remote(RemoteValueWorker, critic_plan("writer"), ray), "critic 'writer'"
    with pytest.raises(LifecycleError, match=f"{owner} is asleep but must be training"):
        worker.update([], seed=1)
    with worker.training():
        assert worker.changed and worker.update([], seed=1).steps == 1
    worker.load(tmp_path)
    assert worker.weights_version == 7
    worker.restore(tmp_path)
    assert worker.weights_version == 8
    assert worker.describe() == "2 ranks, ddp, cpu on here, here" and worker.parameter_count == 3
    worker.actor_group.abandon()
    with pytest.raises(GroupLost, match=f"{owner} has lost its processes; restore it first"):
        worker.snapshot(tmp_path)
    worker.restore(None)
    worker.close()
    assert ray.diary[-1] == "end" and worker.lost
