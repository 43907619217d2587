"""Processes of an actor group start, end and fail together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drmas_pl.cluster.rank import RankInfo
from drmas_pl.cluster.ray_actor_group import RayActorGroup
from drmas_pl.cluster.remote import RemoteWorker
from drmas_pl.errors import GroupLost
from drmas_pl.workers.build import PolicyWorkerPlan
from drmas_pl.workers.policy_worker import PolicyWorkerSettings

Remote = RemoteWorker[Any, Any]


class Actor:
    """A process that writes down what it is asked, and returns its rank."""

    def __init__(self, rank: int, diary: list[str]) -> None:
        self.rank, self.diary = rank, diary

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any, **kwargs: Any) -> Any:
            self.diary.append(f"{method} {args[0] if args else ''}".strip())
            if method == "join":
                return {name: RankInfo("cpu", "here", (), None, 3) for name in ("a", "b")}
            return self.rank

        return SimpleNamespace(remote=remote)


class Pool:
    """Two places for every actor group."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        self.placement = SimpleNamespace(assignments={"a+b": (0, 1)})
        self.done = True

    def start(self, actor_group: str, *, members: int) -> list[Actor]:
        self.diary.append(f"start {actor_group} for {members}")
        return [Actor(rank, self.diary) for rank in range(2)]

    def end(self, actors: Sequence[Actor]) -> None:
        self.diary.append(f"end {len(actors)}")

    def all_done(self, refs: Sequence[Any]) -> bool:
        return self.done


class StageMonitor:
    """Returns what is pending, or raises what it was given."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def collect(self, refs: Sequence[Any], stage: str, *, tasks: Sequence[str] = ()) -> list[Any]:
        if self.error is not None:
            raise self.error
        return list(refs)


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def pair(pool: Pool) -> tuple[Remote, Remote]:
    """Two members of one actor group."""
    made: Any = pool
    spec: Any = SimpleNamespace(parallel="ddp")
    actor_group = RayActorGroup(["a", "b"], spec, pool=made)
    settings = PolicyWorkerSettings()
    first, second = (
        RemoteWorker(
            PolicyWorkerPlan(name, "tiny", (), settings), actor_group=actor_group, timeout=1.0, max_retries=2
        )
        for name in "ab"
    )
    monitor: Any = StageMonitor()
    first.monitor = second.monitor = monitor
    return first, second


def test_members_of_an_actor_group_meet_once(pool: Pool, pair: tuple[Remote, Remote]) -> None:
    first, second = pair
    first.wait()
    second.wait()
    assert (
        pool.diary.count("start a+b for 2") == 1 and sum(line.startswith("join") for line in pool.diary) == 2
    )
    assert len(second.infos) == 2 and second.describe() == "2 ranks, ddp, cpu on here, here"


def test_every_member_asks_for_itself(pool: Pool, pair: tuple[Remote, Remote], tmp_path: Path) -> None:
    pool.diary.clear()
    pair[0].save(tmp_path)
    pair[1].snapshot(tmp_path)
    assert pool.diary == ["save a", "save a", "snapshot b", "snapshot b"]


def test_a_loss_is_that_of_all_and_so_is_the_return(
    pool: Pool, pair: tuple[Remote, Remote], tmp_path: Path
) -> None:
    first, second = pair
    monitor: Any = first.monitor
    monitor.error = GroupLost("a lost a process")
    with pytest.raises(GroupLost, match="a lost a process"):
        first.save(tmp_path)
    assert first.lost and second.lost
    with pytest.raises(GroupLost, match="worker group 'b' has lost its processes; restore it first"):
        second.save(tmp_path)
    monitor.error = None
    pool.diary.clear()
    first.restore(None)
    second.restore(tmp_path)
    assert not first.lost and not second.lost
    assert pool.diary.count("start a+b for 2") == 1 and pool.diary[-2:] == ["restore b", "restore b"]


@pytest.mark.parametrize(("done", "lost"), [(True, False), (False, True)])
def test_an_error_ends_ranks_that_would_wait_for_ever(
    pool: Pool, pair: tuple[Remote, Remote], tmp_path: Path, done: bool, lost: bool
) -> None:
    pool.done = done
    monitor: Any = pair[0].monitor
    monitor.error = MemoryError("too little")
    with pytest.raises(MemoryError):
        pair[0].save(tmp_path)
    assert pair[1].lost is lost


def test_the_last_member_ends_the_processes(pool: Pool, pair: tuple[Remote, Remote]) -> None:
    pair[0].actor_group.release("a")
    assert not pair[1].lost
    pair[0].actor_group.release("b")
    assert pair[1].lost and pool.diary[-1] == "end 2"
