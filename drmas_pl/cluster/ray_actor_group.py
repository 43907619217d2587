"""The processes of one worker, or of several on one base model, as the driver sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drmas_pl.cluster.placement import actor_group_name
from drmas_pl.cluster.rank import RankInfo, RankProcess, RankSpec
from drmas_pl.cluster.resource_pool import CONCURRENT, RayResourcePool
from drmas_pl.cluster.stage_monitor import StageMonitor
from drmas_pl.errors import GroupLost


class RayActorGroup:
    """The ranks of one worker, or of several worker groups on one base model, which then live and die together.

    The processes start at once and in parallel to those of other groups; :meth:`wait` lets them find each other.

    Args:
        members: Labels of the workers that share the processes.
        spec: What each rank builds.
        pool: Starts processes where the group belongs.
    """

    def __init__(
        self,
        members: Sequence[str],
        spec: RankSpec,
        *,
        pool: RayResourcePool,
    ) -> None:
        self.members = tuple(members)
        self.spec = spec
        self.pool = pool
        self.ranks = len(pool.placement.assignments[actor_group_name(members)])
        self.infos: dict[str, list[RankInfo]] = {}
        self.actors: list[Any] = []
        self._open = set(members)
        self.start()

    def start(self) -> None:
        """Start the processes."""
        self.actors = self.pool.start(actor_group_name(self.members), members=len(self.members))

    def wait(self, monitor: StageMonitor) -> None:
        """Wait until every rank has its weights; return at once where they have.

        Raises:
            GroupLost: A rank died or took too long.
        """
        if self.infos:
            return
        address = self.finish(self.begin("address", ranks=1), monitor, "start")[0]
        found = self.finish(self.begin("join", self.spec, address), monitor, "start")
        self.infos = {name: [infos[name] for infos in found] for name in found[0]}

    def begin(
        self,
        method: str,
        *args: Any,
        each: Sequence[Sequence[Any]] = (),
        ranks: int | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Call a method on every rank, or the first ``ranks``; return the pending results.

        Args:
            method: Name of the method.
            *args: Its arguments.
            each: Further arguments for each rank.
            ranks: Number of ranks that are called.
            **kwargs: Its keyword arguments.
        """
        calls = [getattr(actor, method) for actor in self.actors[:ranks]]
        if method in RankProcess.concurrent_methods:
            calls = [call.options(concurrency_group=CONCURRENT) for call in calls]
        return [
            call.remote(*args, *(each[rank] if each else ()), **kwargs) for rank, call in enumerate(calls)
        ]

    def finish(
        self, refs: Sequence[Any], monitor: StageMonitor, stage: str, tasks: Sequence[str] = ()
    ) -> list[Any]:
        """Wait for results; ranks that no longer work together are given up."""
        try:
            return monitor.collect(refs, stage, tasks=tasks)
        except GroupLost:
            self.abandon()
            raise
        except BaseException:
            # a rank that still works waits for others that have given up
            if not self.pool.all_done(refs):
                self.abandon()
            raise

    def release(self, name: str) -> None:
        """Note that a member is closed, and end the processes with the last one."""
        self._open.discard(name)
        if not self._open and self.actors:
            self.abandon()

    def abandon(self) -> None:
        """End every process."""
        actors = self.actors
        self.actors = []
        self.infos = {}
        self.pool.end(actors)
