"""Workers as the driver sees them: the same words as those of :mod:`drmas_pl.workers`, the work on their ranks.

Rows go to every rank, which takes its share of each minibatch; prompts are divided, see :mod:`drmas_pl.cluster.remote_engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.cluster.rank import RankInfo
from drmas_pl.cluster.ray_actor_group import RayActorGroup
from drmas_pl.cluster.remote_engine import RemoteEngine
from drmas_pl.cluster.stage_monitor import StageMonitor
from drmas_pl.engines.base import Engine
from drmas_pl.errors import GroupLost, LifecycleError
from drmas_pl.models.value_head import ValueRow
from drmas_pl.types import Turn
from drmas_pl.workers.build import PolicyWorkerPlan, ValueWorkerPlan, WorkerPlan
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.lifecycle import Lifecycle, State

Plan = TypeVar("Plan", bound=WorkerPlan[Any, Any])
Rows = TypeVar("Rows")


class RemoteWorker(Generic[Plan, Rows]):
    """A worker whose work is done by an actor group. One that lost a rank raises :class:`GroupLost` until it is restored.

    Attributes:
        changed: Whether its state differs from its last snapshot; maintained by whoever takes snapshots.

    Args:
        plan: The worker.
        actor_group: Its ranks, maybe shared with other workers.
        timeout: Seconds that a stage may take.
        max_retries: How often a stage is repeated that lost processes.
        owns_devices: Whether no other worker uses its devices, so that it may work while others do.
    """

    fabric = None
    optimizer = None

    def __init__(
        self,
        plan: Plan,
        *,
        actor_group: RayActorGroup,
        timeout: float,
        max_retries: int,
        owns_devices: bool = False,
    ) -> None:
        self.plan: Plan = plan
        self.name = plan.name
        self.label = plan.label
        self.owner = f"{plan.worker.kind} {plan.name!r}"
        self.actor_group = actor_group
        self.monitor = StageMonitor(self.owner, plan.agent_names, timeout=timeout)
        self.max_retries = max_retries
        self.owns_devices = owns_devices
        self.lifecycle = Lifecycle(self.owner)
        self.changed = True
        self.weights_version = self.parameter_count = 0

    @property
    def lost(self) -> bool:
        """Whether the processes are gone."""
        return not self.actor_group.actors

    @property
    def actors(self) -> list[Any]:
        """The processes, by rank."""
        return self.actor_group.actors

    @property
    def infos(self) -> list[RankInfo]:
        """What is known of each rank."""
        return self.actor_group.infos.get(self.label, [])

    def wait(self) -> None:
        """Wait until every rank has its weights.

        Raises:
            GroupLost: A rank died or took too long.
        """
        self.actor_group.wait(self.monitor)
        self.parameter_count = self.infos[0].parameter_count

    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold weights and optimizer state ready for updates for the duration of the block."""
        with self._phase(State.TRAINING):
            yield

    def update(self, rows: Rows, *, seed: int) -> UpdateReport:
        """Run the iteration's optimizer steps; see :meth:`.Worker.update`.

        Raises:
            GroupLost: A rank died or took too long.
        """
        return self.begin_update(rows, seed=seed)()

    def begin_update(self, rows: Rows, *, seed: int) -> Callable[[], UpdateReport]:
        """Begin with the iteration's optimizer steps and return what waits for their end."""
        self.lifecycle.require(State.TRAINING)
        self.changed = True
        refs = self._begin("update", self.actor_group.pool.share(rows), seed=seed)

        def finish() -> UpdateReport:
            report: UpdateReport
            report, self.weights_version = self._finish(refs, "update")[0]
            return report

        return finish

    def save(self, folder: Path) -> None:
        """Write its part of a checkpoint, into a folder that all nodes see."""
        self._call("save", folder.resolve(), stage="saving")

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote.

        Raises:
            CheckpointError: A file is missing or does not fit.
        """
        self.changed = True
        self.weights_version = self._call("load", folder.resolve(), stage="loading")[0]

    def snapshot(self, folder: Path) -> None:
        """Write the state to go on from when a rank is lost."""
        self._call("snapshot", folder.resolve(), stage="keeping its state")

    def restore(self, folder: Path | None) -> None:
        """Start the ranks again if they are gone, and go back to the state in ``folder``, if there is one."""
        if self.lost:
            self.actor_group.start()
        self.wait()
        if folder is not None:
            self.weights_version = self._call("restore", folder.resolve(), stage="restoring")[0]

    def describe(self) -> str:
        """Say where the ranks are, for example ``2 ranks, ddp, cuda on 10.0.0.1 GPU 0, 10.0.0.1 GPU 1``."""
        infos = self.infos
        places = ", ".join(info.place for info in infos)
        noun = "rank" if len(infos) == 1 else f"ranks, {self.actor_group.spec.parallel}"
        return f"{len(infos)} {noun}, {infos[0].device.partition(':')[0]} on {places}"

    def close(self) -> None:
        """Release the worker for good, and the processes unless others in them are still open."""
        self.lifecycle.move(State.CLOSED)
        if not self.lost:
            self._call("close", stage="closing")
        self.actor_group.release(self.label)

    @contextmanager
    def _phase(self, state: State) -> Iterator[int | None]:
        """Open a phase here and on the ranks; ranks that are gone need not close it. Yields the context length of their engine."""
        with self.lifecycle.phase(state):
            context_length = self._call("enter", state.value, self.weights_version, stage="waking")[0]
            entered = self.actors
            try:
                yield context_length
            finally:
                # those that were started meanwhile have entered nothing
                if not self.lost and self.actors is entered:
                    self._call("leave", stage="falling asleep")

    def _call(self, method: str, *args: Any, stage: str) -> list[Any]:
        """Call a method on every rank and return the results."""
        return self._finish(self._begin(method, *args), stage)

    def _begin(self, method: str, *args: Any, each: Sequence[Sequence[Any]] = (), **kwargs: Any) -> list[Any]:
        """Call a method on every rank, see :meth:`RayActorGroup.begin`; return the pending results."""
        if self.lost:
            raise GroupLost(f"{self.owner} has lost its processes; restore it first")
        return self.actor_group.begin(method, self.label, *args, each=each, **kwargs)

    def _finish(self, refs: Sequence[Any], stage: str, tasks: Sequence[str] = ()) -> list[Any]:
        return self.actor_group.finish(refs, self.monitor, stage, tasks)


class RemotePolicyWorker(RemoteWorker[PolicyWorkerPlan, Mapping[str, Sequence[TrainingRow]]]):
    """A worker group. Its agents render and parse here; their weights are elsewhere.

    Args:
        plan: The group.
        **ranks: See :class:`RemoteWorker`.
    """

    sync_seconds = 0.0
    syncs_in_background = False

    def __init__(self, plan: PolicyWorkerPlan, **ranks: Any) -> None:
        super().__init__(plan, **ranks)
        self.settings = plan.settings
        self._agents = {agent.name: agent for agent in sorted(plan.agents, key=lambda agent: agent.name)}
        self._remote_engine = RemoteEngine(self)
        self.engine: Engine = self._remote_engine
        self._awake = False

    @property
    def agents(self) -> dict[str, Agent]:
        """Its agents by name."""
        return self._agents

    def wait(self) -> None:
        """Wait until every rank has its weights; see :meth:`RemoteWorker.wait`."""
        super().wait()
        first = self.infos[0]
        self.engine.context_length = first.context_length
        for agent in self.agents.values():
            agent.use_tokenizer(first.tokenizer, end_ids=first.end_ids)

    @property
    def served(self) -> bool:
        """Whether one engine, the first rank's, generates for all ranks."""
        return bool(self.infos) and self.infos[0].served

    @contextmanager
    def rollout(self) -> Iterator[Engine]:
        """Wake the engines with the newest weights for the duration of the block."""
        with self._open(State.ROLLOUT):
            yield self.engine

    @property
    def generates_while_training(self) -> bool:
        """Whether a server of its own generates; what a rank computes itself waits for what it does else."""
        return self.served and all(info.own_weights for info in self.infos)

    @contextmanager
    def ahead(self) -> Iterator[Engine]:
        """Wake the engine with the newest weights and let it keep them for the duration of the block, while the group may learn.

        Raises:
            LifecycleError: The engine computes in the ranks, which do one thing at a time.
        """
        if not self.generates_while_training:
            raise LifecycleError(
                f"{self.owner} runs on a cluster, where a process does one thing at a time, so it cannot generate ahead without a "
                "server; use engine=sglang with engine.release=nothing, or rollout.max_staleness=0"
            )
        with self._open(State.AHEAD):
            yield self.engine

    @contextmanager
    def _open(self, state: State) -> Iterator[None]:
        """Keep the engines awake, here and on the ranks."""
        with self._phase(state) as self.engine.context_length:
            self._awake = True
            try:
                yield
            finally:
                self._awake = False
                self._remote_engine.end_rollout()

    def reward_penalties(self, agent: Agent, turns: Sequence[Turn]) -> list[float]:
        """Return what the KL penalty takes from each turn's score; see :meth:`PolicyWorker.reward_penalties`."""
        if not agent.objective.penalises_reward:
            return [0.0] * len(turns)
        penalties: list[float] = self._call(
            "reward_penalties", agent.name, self.actor_group.pool.share(list(turns)), stage="scoring"
        )[0]
        return penalties

    @property
    def rank_count(self) -> int:
        """Number of ranks."""
        return self.actor_group.ranks

    @property
    def timeout(self) -> float:
        """Seconds that a stage may take."""
        return self.monitor.timeout

    def require_awake(self) -> None:
        """Raise :class:`LifecycleError` unless the engines are awake."""
        if not self._awake:
            # says in which state it is
            self.lifecycle.require(State.ROLLOUT)

    def begin_requests(self, method: str, *args: Any, **call: Any) -> list[Any]:
        """Call a method about requests on ranks, see :meth:`RayActorGroup.begin`; return the pending results.

        Raises:
            GroupLost: The ranks are gone.
        """
        return self._begin(method, *args, **call)

    def finish_requests(self, refs: Sequence[Any], tasks: Sequence[str]) -> list[Any]:
        """Wait for the results of :meth:`begin_requests`.

        Args:
            refs: Pending results.
            tasks: Tasks that the requests are for.

        Raises:
            GroupLost: A rank died or took too long.
        """
        return self._finish(refs, "generation", tasks)

    def give_up_stuck(self, tasks: Sequence[str]) -> GroupLost:
        """End the ranks, which do not answer any more, and return the error that says so."""
        self.actor_group.abandon()
        return self.monitor.stuck("generation", tasks)


class RemoteValueWorker(RemoteWorker[ValueWorkerPlan, Sequence[ValueRow]]):
    """A critic.

    Args:
        plan: The critic.
        **ranks: See :class:`RemoteWorker`.
    """

    def __init__(self, plan: ValueWorkerPlan, **ranks: Any) -> None:
        super().__init__(plan, **ranks)
        self.settings = plan.settings

    @property
    def agents(self) -> Collection[str]:
        """Names of its agents."""
        return self.plan.agents

    def values(self, rows: Sequence[TrainingRow]) -> list[tuple[float, ...]]:
        """Return the value of each sampled token of ``rows``, in order.

        Raises:
            GroupLost: A rank died or took too long.
        """
        shared = self.actor_group.pool.share(list(rows))
        values: list[tuple[float, ...]] = self._call("values", shared, stage="judging")[0]
        return values
