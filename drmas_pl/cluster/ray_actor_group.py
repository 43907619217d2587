"""The driver's side of ranks: the processes of a crew, and what one group or critic in them is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drmas_pl.cluster.placement import actor_group_name
from drmas_pl.cluster.process import ProcessParts, RankInfo, RankProcess
from drmas_pl.cluster.resource_pool import CONCURRENT, RayResourcePool
from drmas_pl.cluster.stage_monitor import StageMonitor
from drmas_pl.errors import GroupLost


class RayActorGroup:
    """The ranks of one group or critic, or of several groups on one base model, which then live and die together.

    The processes start at once and in parallel to those of other crews; :meth:`wait` makes them a crew.

    Args:
        members: Names, in the pool, of those that share the processes.
        parts: What each rank builds.
        pool: Starts processes on the crew's seats.
        kind: Class of the processes.
    """

    def __init__(
        self,
        members: Sequence[str],
        parts: ProcessParts,
        *,
        pool: RayResourcePool,
        kind: type[RankProcess[Any]],
    ) -> None:
        self.members, self.parts, self.pool, self.kind = tuple(members), parts, pool, kind
        self.ranks = len(pool.seating.seats[actor_group_name(members)])
        self.facts: dict[str, list[RankInfo]] = {}
        self.actors: list[Any] = []
        self._open = set(members)
        self.start()

    def start(self) -> None:
        """Start the processes."""
        self.actors = self.pool.start(actor_group_name(self.members), self.kind, members=len(self.members))

    def wait(self, watch: StageMonitor) -> None:
        """Wait until every rank has its weights; return at once where they have.

        Raises:
            GroupLost: A rank died or took too long.
        """
        if self.facts:
            return
        address = self.finish(self.begin("address", ranks=1), watch, "start")[0]
        found = self.finish(self.begin("join", self.parts, address), watch, "start")
        self.facts = {name: [facts[name] for facts in found] for name in found[0]}

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
        if method in self.kind.concurrent_methods:
            calls = [call.options(concurrency_group=CONCURRENT) for call in calls]
        return [
            call.remote(*args, *(each[rank] if each else ()), **kwargs) for rank, call in enumerate(calls)
        ]

    def finish(
        self, refs: Sequence[Any], watch: StageMonitor, stage: str, tasks: Sequence[str] = ()
    ) -> list[Any]:
        """Wait for results; ranks that no longer work together are given up."""
        try:
            return watch.collect(refs, stage, tasks=tasks)
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
        actors, self.actors, self.facts = self.actors, [], {}
        self.pool.end(actors)


class RemoteWorker:
    """A group or critic whose work is done by a crew. One that lost a rank raises :class:`GroupLost` until it is restored.

    Attributes:
        changed: Whether its state differs from what it has kept; maintained by whoever lets it keep its state.

    Args:
        name: Its name in the processes.
        crew: The processes.
        watch: Waits for them.
        max_retries: How often a stage is repeated that lost processes.
        owns_devices: Whether no other worker uses its devices.
    """

    fabric = None
    optimizer = None

    def __init__(
        self,
        name: str,
        *,
        crew: RayActorGroup,
        watch: StageMonitor,
        max_retries: int,
        owns_devices: bool = False,
    ) -> None:
        self.name, self.crew, self.watch = name, crew, watch
        self.max_retries, self.owns_devices = max_retries, owns_devices
        self.changed = True

    @property
    def label(self) -> str:
        """Its name among everything that runs on the cluster."""
        return self.name

    @property
    def lost(self) -> bool:
        """Whether the processes are gone."""
        return not self.crew.actors

    @property
    def actors(self) -> list[Any]:
        """The processes, by rank."""
        return self.crew.actors

    @property
    def facts(self) -> list[RankInfo]:
        """What is known of each rank."""
        return self.crew.facts.get(self.name, [])

    def wait(self) -> None:
        """Wait until every rank has its weights.

        Raises:
            GroupLost: A rank died or took too long.
        """
        self.crew.wait(self.watch)

    def save(self, folder: Path) -> None:
        """Write its part of a checkpoint, into a folder that all nodes see."""
        self._call("save", folder.resolve(), stage="saving")

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote.

        Raises:
            CheckpointError: A file is missing or does not fit.
        """
        self.changed = True
        self._take(self._call("load", folder.resolve(), stage="loading")[0])

    def snapshot(self, folder: Path) -> None:
        """Write the state to go on from when a rank is lost."""
        self._call("snapshot", folder.resolve(), stage="keeping its state")

    def restore(self, folder: Path | None) -> None:
        """Start the ranks again if they are gone, and go back to the state in ``folder``, if there is one."""
        if self.lost:
            self.crew.start()
        self.wait()
        if folder is not None:
            self._take(self._call("restore", folder.resolve(), stage="restoring")[0])

    def describe(self) -> str:
        """Say where the ranks are, for example ``2 ranks, ddp, cuda on 10.0.0.1 GPU 0, 10.0.0.1 GPU 1``."""
        places = ", ".join(" ".join([fact.node, *(f"GPU {gpu}" for gpu in fact.gpus)]) for fact in self.facts)
        noun = "rank" if len(self.facts) == 1 else f"ranks, {self.crew.parts.parallel}"
        return f"{len(self.facts)} {noun}, {self.facts[0].device.partition(':')[0]} on {places}"

    def _take(self, found: Any) -> None:
        """Note what a rank reports of the state that it has taken over."""

    def _call(self, method: str, *args: Any, stage: str) -> list[Any]:
        """Call a method on every rank and return the results."""
        return self._finish(self._begin(method, *args), stage)

    def _begin(self, method: str, *args: Any, each: Sequence[Sequence[Any]] = (), **kwargs: Any) -> list[Any]:
        """Call a method on every rank, see :meth:`RayActorGroup.begin`; return the pending results."""
        if self.lost:
            raise GroupLost(f"{self.watch.kind} {self.name!r} has lost its processes; restore it first")
        return self.crew.begin(method, self.name, *args, each=each, **kwargs)

    def _finish(self, refs: Sequence[Any], stage: str, tasks: Sequence[str] = ()) -> list[Any]:
        return self.crew.finish(refs, self.watch, stage, tasks)
