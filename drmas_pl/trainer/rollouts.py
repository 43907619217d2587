"""Where an iteration's rollout comes from: sampled before its update, or one iteration ahead in the background.

::

    SyncRollouts    rollout 0 ── update 0 ── rollout 1 ── update 1 …

    AsyncRollouts   rollout 0 ── rollout 1 ── rollout 2 ── rollout 3 …
                                 update 0 ─── update 1 ─── update 2 …

Asynchronous rollouts are sampled with the weights that the updates up to n − 2 have made and are trained on after update n − 1: samples are
one update old, those of the first iteration none. Between two iterations everything stands still: engines are given the newest weights, and
whoever needs them or the engines (validation, checkpoints) waits for that moment. A rollout that is complete by then is kept for its
iteration, and is part of a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from drmas_pl.agent import Agent
from drmas_pl.algorithms.credit_rules import CreditRule
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.data.module import TaskDataModule
from drmas_pl.engines.base import Engine
from drmas_pl.errors import BatchError, ConfigError
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.rollout.dynamic_sampling import RolloutBatch, sample_rollout, tasks_with_signal
from drmas_pl.rollout.timeline import Timeline, engine_metrics, trajectory_metrics
from drmas_pl.rollout.tree import TreeSampling
from drmas_pl.team import Team
from drmas_pl.trainer.fault_tolerance import StageRetry
from drmas_pl.trainer.metrics import staleness_metrics
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.types import Trajectory
from drmas_pl.workers.background_weight_sync import BackgroundWeightSync
from drmas_pl.workers.engine_phases import Residency, awake_engines, engines_ahead
from drmas_pl.workers.protocols import PolicyWorkers


def make_collector(
    team: Team, agents: Mapping[str, Agent], settings: RolloutSettings, *, failure_log: Path | None = None
) -> Collector:
    """Build the collector that plays as the settings say; tracebacks of faults go to ``failure_log``."""
    return Collector(
        team,
        agents,
        max_calls=settings.max_calls,
        env_workers=settings.env_workers,
        env_latency=settings.env_latency,
        env_timeout=settings.env_timeout,
        max_concurrent=settings.max_concurrent,
        retries=settings.retries,
        max_failed_share=settings.max_failed_share,
        failure_log=failure_log,
    )


class SyncRollouts:
    """Samples the rollout of an iteration when it is asked for.

    Args:
        collector: Plays the team.
        data: Where tasks come from.
        groups: Worker groups by name.
        settings: Samples, draws and residency.
        credit: Decides, with dynamic sampling, which tasks carry signal.
        seed: Run seed.
        retry: Repeats a rollout that lost a worker.
    """

    def __init__(
        self,
        collector: Collector,
        data: TaskDataModule,
        groups: PolicyWorkers,
        *,
        settings: RolloutSettings,
        credit: CreditRule | None,
        seed: int,
        retry: StageRetry,
    ) -> None:
        self.collector = collector
        self.data = data
        self.groups = groups
        self.settings = settings
        self.credit = credit
        self.seed = seed
        self.retry = retry
        self._sync_seconds = 0.0
        # resolved, it ends what is being sampled
        self._stop: Future[None] | None = None

    def next(self, index: int) -> RolloutBatch:
        """Return the rollout of an iteration, counted from 0.

        Raises:
            TrainingStopped: Too many trajectories failed.
        """
        return self.retry.run(self._sample_now, index)

    def restore(self, rollout: RolloutBatch) -> None:
        """Take over a rollout from a checkpoint; synchronous rollouts are not sampled ahead, so there is nothing to take over."""

    def drain(self) -> RolloutBatch | None:
        """Put all engines to sleep; return what has been sampled for the next iteration."""
        return None

    def close(self) -> None:
        """End whatever is still being sampled, for good."""

    @property
    def engines_idle(self) -> bool:
        """Whether engines have nothing to do while workers learn, and need not make room for each other."""
        return self.settings.residency == "all"

    def weights_versions(self) -> dict[str, int]:
        """Return the version of every agent's newest weights."""
        return {agent: group.weights_version for group in self.groups.values() for agent in group.agents}

    def metrics(self, rollout: RolloutBatch) -> dict[str, float]:
        """Return which weights agents have now, where the rollout's time went, and how long new weights took since the last call."""
        found = {
            f"train/{agent}/weights_version": float(version)
            for agent, version in self.weights_versions().items()
        }
        before = self._sync_seconds
        self._sync_seconds = sum(group.sync_seconds for group in self.groups.values())
        if any(group.engine.own_weights for group in self.groups.values()):
            found["time/sync"] = self._sync_seconds - before
        if rollout.timeline is not None:
            agents = {name: list(group.agents) for name, group in self.groups.items()}
            found |= engine_metrics(rollout.timeline, agents)
            found |= trajectory_metrics(rollout.timeline)
        return found

    def _sample_now(self, index: int) -> RolloutBatch:
        with awake_engines(self.groups, self.settings.residency) as engines:
            return self._sample(engines, self.weights_versions(), index)

    def _sample(self, engines: Mapping[str, Engine], versions: Mapping[str, int], index: int) -> RolloutBatch:
        """Sample an iteration's rollout with awake engines that hold the given versions."""
        phase = Phase("train", self.seed, index, self.settings.samples, tree=self._tree())
        timeline = Timeline()
        rollout = sample_rollout(
            self.data,
            lambda tasks: self.collector.collect(tasks, engines, phase, timeline=timeline, stop=self._stop),
            iteration=index,
            max_draws=self.settings.max_draws,
            with_signal=self._with_signal,
        )
        return replace(rollout, versions=versions, timeline=timeline)

    def _tree(self) -> TreeSampling | None:
        """Say how trees are grown; agents that never learn need no candidates."""
        settings = self.settings
        if not settings.branches:
            return None
        learners = frozenset(
            agent for group in self.groups.values() if group.settings.trainable for agent in group.agents
        )
        return TreeSampling(
            settings.candidates,
            settings.select,
            temperature=settings.select_temperature,
            depth=settings.depth,
            agents=learners,
            credit=self.credit,
        )

    def _with_signal(self, trajectories: Sequence[Trajectory]) -> set[str]:
        return tasks_with_signal(build_turn_batch(trajectories, self.collector.agents, credit=self.credit))


class AsyncRollouts(SyncRollouts):
    """Samples in a thread, one iteration ahead. All methods belong to the thread of the training loop.

    Args:
        collector: See :class:`SyncRollouts`.
        data: See :class:`SyncRollouts`.
        groups: Worker groups by name, whose engines can generate while they learn.
        max_iterations: Number of iterations of the run.
        **options: See :class:`SyncRollouts`.

    Raises:
        ConfigError: An engine generates with weights that are trained, or does not stay awake.
    """

    engines_idle = False

    def __init__(
        self,
        collector: Collector,
        data: TaskDataModule,
        groups: PolicyWorkers,
        *,
        max_iterations: int,
        **options: Any,
    ) -> None:
        super().__init__(collector, data, groups, **options)
        check_background_generation(groups, self.settings.residency)
        self._max_iterations = max_iterations
        self._complete: RolloutBatch | None = None
        self._newest: Mapping[str, int] = {}
        self._began = 0.0
        self._overlap = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._future: Future[tuple[RolloutBatch, float]] | None = None
        self._phase = ExitStack()

    def next(self, index: int) -> RolloutBatch:
        """Return the rollout of an iteration, and begin to sample the next one with the newest weights.

        Raises:
            BatchError: It was sampled with weights that are more than one update old.
            TrainingStopped: Too many trajectories failed.
        """
        rollout = self.drain()
        if rollout is None:
            self._begin(index)
            rollout = self.drain()
        assert rollout is not None
        self._complete = None
        self._newest = self.weights_versions()
        check_staleness(rollout.versions, self._newest)
        if index + 1 < self._max_iterations:
            self._begin(index + 1)
        return rollout

    def restore(self, rollout: RolloutBatch) -> None:
        """Take over the rollout that an earlier part of the run has sampled for the next iteration."""
        self._complete = rollout

    def drain(self) -> RolloutBatch | None:
        """Wait for the end of what is being sampled, put the engines to sleep, and return what is complete for the next iteration.

        Raises:
            TrainingStopped: Too many trajectories failed.
        """
        if self._future is None:
            return self._complete
        waited = time.perf_counter()
        # interrupted here, everything stays as it is for close()
        wait([self._future])
        future = self._future
        self._future = None
        self._phase.close()
        self._complete, ended = future.result()
        self._overlap = max(min(waited, ended) - self._began, 0.0)
        return self._complete

    def close(self) -> None:
        """End what is being sampled, and forget it."""
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(None)
        with suppress(Exception):
            self.drain()
        self._thread.shutdown()

    def metrics(self, rollout: RolloutBatch) -> dict[str, float]:
        """Add how many updates old the turns are, and for how many seconds they were sampled while workers learnt."""
        return {
            **super().metrics(rollout),
            **staleness_metrics(rollout.trajectories, self._newest),
            "time/overlap": self._overlap,
        }

    def _begin(self, index: int) -> None:
        with BackgroundWeightSync(idle=True) as sync:
            for group in self.groups.values():
                sync.begin(group)
        engines = self._phase.enter_context(engines_ahead(self.groups))
        self._stop = Future()
        self._began = time.perf_counter()
        self._future = self._thread.submit(self._sample_timed, engines, self.weights_versions(), index)

    def _sample_timed(
        self, engines: Mapping[str, Engine], versions: Mapping[str, int], index: int
    ) -> tuple[RolloutBatch, float]:
        return self._sample(engines, versions, index), time.perf_counter()


def check_staleness(versions: Mapping[str, int], newest: Mapping[str, int]) -> None:
    """Assert that weights which have sampled are at most one update old.

    Args:
        versions: Their versions by agent name.
        newest: Versions of the weights that learn, by agent name.

    Raises:
        BatchError: They are older, or not there yet.
    """
    for agent, version in newest.items():
        if not 0 <= version - versions[agent] <= 1:
            raise BatchError(
                f"agent {agent!r} spoke with weights {versions[agent]} but learns at {version}; expected at most 1 update apart"
            )


def check_background_generation(groups: PolicyWorkers, residency: Residency) -> None:
    """Make sure that every group can learn while its engine generates.

    Args:
        groups: Worker groups by name.
        residency: Engines awake during a rollout.

    Raises:
        ConfigError: Engines do not stay awake, or one generates with weights that are trained.
    """
    what = "rollout.staleness=1 generates while groups learn"
    if residency != "all":
        raise ConfigError(f"{what}, so all engines stay awake; set rollout.residency=all, got {residency}")
    for name, group in groups.items():
        if group.fabric is None:
            raise ConfigError(
                f"{what}, but a process of cluster=ray does one thing at a time; use cluster=local, or rollout.staleness=0"
            )
        if not group.generates_while_training:
            raise ConfigError(
                f"{what}, but the engine of worker group {name!r} uses the weights or the memory of its trainer; use engine=sglang with "
                "engine.release=nothing, or engine.copy=true with engine=transformers, or rollout.staleness=0"
            )
        if group.settings.update.offload != "none":
            raise ConfigError(
                f"{what}, but worker group {name!r} has update.offload={group.settings.update.offload}, which moves weights meanwhile; "
                "set update.offload=none"
            )
