"""A worker group as the driver sees it: the same words as :class:`~drmas_pl.workers.policy_worker.PolicyWorker`, the work on its ranks.

Rows go to every rank, which takes its share of each minibatch; prompts are divided, see :mod:`drmas_pl.cluster.remote_engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.cluster.ray_actor_group import RayActorGroup, RemoteWorker
from drmas_pl.cluster.remote_engine import RemoteEngine
from drmas_pl.cluster.stage_monitor import StageMonitor
from drmas_pl.engines.base import Engine
from drmas_pl.errors import GroupLost, LifecycleError
from drmas_pl.types import Turn
from drmas_pl.workers.build import PolicyWorkerPlan
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.lifecycle import Lifecycle, State


class RemotePolicyWorker(RemoteWorker):
    """Drives the ranks of one worker group. Its agents render and parse here; their weights are elsewhere.

    Args:
        plan: The group.
        crew: Its ranks, maybe shared with other groups.
        timeout: Seconds that a stage may take.
        max_retries: How often a stage is repeated that lost a group.
        owns_devices: Whether no other group uses its devices, so that it may work while others do.
    """

    sync_seconds = 0.0
    generates_while_training = False
    syncs_in_background = False

    def __init__(
        self,
        plan: PolicyWorkerPlan,
        *,
        crew: RayActorGroup,
        timeout: float,
        max_retries: int,
        owns_devices: bool = False,
    ) -> None:
        self.agents: dict[str, Agent] = {
            agent.name: agent for agent in sorted(plan.agents, key=lambda agent: agent.name)
        }
        super().__init__(
            plan.name,
            crew=crew,
            watch=StageMonitor(plan.name, list(self.agents), timeout=timeout),
            max_retries=max_retries,
            owns_devices=owns_devices,
        )
        self.settings = plan.settings
        self.lifecycle = Lifecycle(plan.name)
        self._remote_engine = RemoteEngine(self)
        self.engine: Engine = self._remote_engine
        self.weights_version = self.parameter_count = 0

    def wait(self) -> None:
        """Wait until every rank has its weights; see :meth:`RemoteWorker.wait`."""
        super().wait()
        first = self.facts[0]
        self.parameter_count, self.engine.context_length = first.parameter_count, first.context_length
        for agent in self.agents.values():
            agent.use_tokenizer(first.tokenizer, end_ids=first.end_ids)

    @property
    def served(self) -> bool:
        """Whether one engine, the first rank's, generates for all ranks."""
        return bool(self.facts) and self.facts[0].served

    @contextmanager
    def rollout(self) -> Iterator[Engine]:
        """Wake the engines with the newest weights for the duration of the block."""
        with self._phase(State.ROLLOUT):
            yield self.engine

    def ahead(self) -> AbstractContextManager[Engine]:
        """Refuse, since a process on a cluster does one thing at a time; see :meth:`PolicyWorker.ahead`."""
        raise LifecycleError(
            f"worker group {self.name!r} runs on a cluster, where a process does one thing at a time, so it cannot generate ahead; "
            "use cluster=local, or rollout.staleness=0"
        )

    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold the policy ready for updates for the duration of the block."""
        with self._phase(State.TRAINING):
            yield

    def update(self, rows: Mapping[str, Sequence[TrainingRow]], *, seed: int) -> UpdateReport:
        """Run the iteration's optimizer steps; see :meth:`PolicyWorker.update`.

        Raises:
            GroupLost: A rank died or took too long.
        """
        return self.begin_update(rows, seed=seed)()

    def begin_update(
        self, rows: Mapping[str, Sequence[TrainingRow]], *, seed: int
    ) -> Callable[[], UpdateReport]:
        """Begin with the iteration's optimizer steps and return what waits for their end."""
        self.lifecycle.require(State.TRAINING)
        self.changed = True
        refs = self._begin("update", self.crew.pool.share(dict(rows)), seed=seed)

        def finish() -> UpdateReport:
            report: UpdateReport
            report, self.weights_version = self._finish(refs, "update")[0]
            return report

        return finish

    def reward_penalties(self, agent: Agent, turns: Sequence[Turn]) -> list[float]:
        """Return what the KL penalty takes from each turn's score; see :meth:`PolicyWorker.reward_penalties`."""
        if not agent.objective.penalises_reward:
            return [0.0] * len(turns)
        penalties: list[float] = self._call(
            "reward_penalties", agent.name, self.crew.pool.share(list(turns)), stage="scoring"
        )[0]
        return penalties

    @property
    def rank_count(self) -> int:
        """Number of ranks."""
        return self.crew.ranks

    @property
    def timeout(self) -> float:
        """Seconds that a stage may take."""
        return self.watch.timeout

    def require_rollout(self) -> None:
        """Raise :class:`LifecycleError` unless the engines are awake."""
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
        self.crew.abandon()
        return self.watch.stuck("generation", tasks)

    def memory(self) -> None:
        """Return None: it needs nothing of this process's device."""

    def close(self) -> None:
        """Release the engine for good, and the processes unless other groups in them are still open."""
        self.lifecycle.move(State.CLOSED)
        if not self.lost:
            self._call("close", stage="closing")
        self.crew.release(self.name)

    def _take(self, found: Any) -> None:
        self.weights_version = found

    @contextmanager
    def _phase(self, state: State) -> Iterator[None]:
        """Open a phase here and on the ranks; ranks that are gone need not close it."""
        with self.lifecycle.phase(state):
            self.engine.context_length = self._call(
                "enter", state.value, self.weights_version, stage="waking"
            )[0]
            try:
                yield
            finally:
                self._remote_engine.end_rollout()
                if not self.lost:
                    self._call("leave", stage="falling asleep")
