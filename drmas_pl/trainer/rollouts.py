"""Where an iteration's rollout comes from: sampled before its update, or in the background, up to ``max_staleness`` iterations ahead.

::

    SyncRollouts    rollout 0 ── update 0 ── rollout 1 ── update 1 …

    AsyncRollouts   rollout 0 ── rollout 1 ── rollout 2 ── rollout 3 …
                                 update 0 ─── update 1 ─── update 2 …

A trajectory of iteration n begins when at least n − ``max_staleness`` updates are made, and is trained on after n of them, so that none of
its tokens is older than that. :mod:`drmas_pl.rollout.continuous` plays it. Between two iterations everything stands still for a moment:
engines are given the newest weights, and whoever needs them or the engines (validation, checkpoints) has them then. What has been played
by then, the beginnings of trajectories too, is a part of a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from drmas_pl.agent import Agent
from drmas_pl.algorithms.credit_rules import CreditRule
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.data.module import TaskDataModule
from drmas_pl.engines.base import Engine
from drmas_pl.errors import ConfigError, GroupLost
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.rollout.continuous import ContinuousCollection, Draws, Stretch
from drmas_pl.rollout.dynamic_sampling import RolloutBatch, draw_tasks, tasks_with_signal
from drmas_pl.rollout.played_ahead import PlayedAhead
from drmas_pl.rollout.timeline import Timeline, engine_metrics, trajectory_metrics
from drmas_pl.rollout.tree import TreeSampling
from drmas_pl.team import Team
from drmas_pl.trainer.fault_tolerance import StageRetry
from drmas_pl.trainer.metrics import staleness_metrics
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.types import Trajectory
from drmas_pl.workers.background_weight_sync import BackgroundWeightSync
from drmas_pl.workers.engine_phases import awake_engines, engines_ahead
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

    def restore(self, played: PlayedAhead) -> None:
        """Take over what a checkpoint holds; synchronous rollouts are not sampled ahead, so there is nothing to take over."""

    def drain(self) -> PlayedAhead | None:
        """Put all engines to sleep; return what has been played for iterations to come."""
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
        phase = self._training_phase(index)
        timeline = Timeline()
        draws = self._draws(index)
        tasks = next(draws)
        while True:
            trajectories = self.collector.collect(tasks, engines, phase, timeline=timeline)
            try:
                tasks = draws.send(trajectories)
            except StopIteration as end:
                return replace(end.value, versions=versions, timeline=timeline)

    def _training_phase(self, index: int) -> Phase:
        return Phase("train", self.seed, index, self.settings.samples, tree=self._tree())

    def _draws(self, index: int) -> Draws:
        return draw_tasks(
            self.data.tasks_for(index),
            partial(self.data.replacements, iteration=index),
            max_draws=self.settings.max_draws,
            with_signal=self._with_signal,
        )

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
    """Samples in a thread while workers learn. All methods belong to the thread of the training loop.

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
        check_background_generation(groups, self.settings)
        self._max_iterations = max_iterations
        self._known = PlayedAhead()
        self._collection: ContinuousCollection | None = None
        self._stretch = Stretch(0, 0, None)
        self._began = 0.0
        self._overlap = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._future: Future[float] | None = None
        self._phase = ExitStack()

    def next(self, index: int) -> RolloutBatch:
        """Return the rollout of an iteration, and go on playing the next ones with the newest weights.

        Raises:
            TrainingStopped: Too many trajectories failed.
        """
        return self.retry.run(self._next, index)

    def restore(self, played: PlayedAhead) -> None:
        """Take over what an earlier part of the run has played ahead."""
        self._known = played

    def drain(self) -> PlayedAhead | None:
        """End the stretch that is played, put the engines to sleep, and return what has been played ahead, if anything.

        Raises:
            TrainingStopped: Too many trajectories failed.
        """
        self._end_stretch()
        played = self._known if self._collection is None else self._collection.played_ahead()
        return played if played.iterations else None

    def close(self) -> None:
        """End what is being sampled, and forget it."""
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(None)
        with suppress(Exception):
            self._end_stretch()
        if self._collection is not None:
            self._thread.submit(self._collection.close).result()
            self._collection = None
        self._thread.shutdown()

    def metrics(self, rollout: RolloutBatch) -> dict[str, float]:
        """Add how many updates old the tokens are, and for how many seconds was sampled while workers learnt."""
        return {
            **super().metrics(rollout),
            **staleness_metrics(rollout.trajectories, rollout.versions),
            "time/overlap": self._overlap,
        }

    def _next(self, index: int) -> RolloutBatch:
        try:
            return self._take(index)
        except GroupLost:
            # whoever was lost comes back with the newest weights, and goes on from what is recorded
            self._give_up_collection()
            raise

    def _take(self, index: int) -> RolloutBatch:
        self._end_stretch()
        while (rollout := self._collected(index)) is None:
            if self._future is None:
                self._begin_stretch(index, goal=index)
            self._wait(index)
        if self._future is None and index + 1 < self._max_iterations:
            self._begin_stretch(index, goal=index + 1)
        return replace(rollout, versions=self.weights_versions())

    def _collected(self, index: int) -> RolloutBatch | None:
        return None if self._collection is None else self._collection.take(index)

    def _begin_stretch(self, index: int, *, goal: int) -> None:
        """Bring the newest weights to the engines and go on playing.

        Args:
            index: Number of updates that were made.
            goal: Iteration whose rollout is wanted.
        """
        with BackgroundWeightSync(idle=True) as sync:
            for group in self.groups.values():
                sync.begin(group)
        engines = self._phase.enter_context(engines_ahead(self.groups))
        if self._collection is None:
            self._collection = ContinuousCollection(
                self.collector, engines, phase=self._training_phase, draws=self._draws, known=self._known
            )
            self._known = PlayedAhead()
        # engines that work by themselves take new weights whenever these are there, unless all of a rollout has to be of one version
        waits = self._collection.ordered or self.settings.max_staleness == 1
        newest = min(index + self.settings.max_staleness, self._max_iterations - 1)
        self._stretch = Stretch(goal, newest, goal if waits else None)
        self._stop = Future()
        self._began = time.perf_counter()
        self._future = self._thread.submit(self._collection.play, self._stretch, stop=self._stop)

    def _wait(self, index: int) -> None:
        """Wait until the rollout of an iteration is complete, or the stretch is over."""
        assert self._collection is not None and self._future is not None
        if self._stretch.goal is None:
            either: list[Future[Any]] = [self._collection.complete(index), self._future]
            wait(either, return_when=FIRST_COMPLETED)
        if self._stretch.goal is not None or self._future.done():
            self._end_stretch()

    def _end_stretch(self) -> None:
        """Wait for the end of the stretch, which is now where it has no goal, and put the engines to sleep.

        Raises:
            TrainingStopped: Too many trajectories failed.
        """
        if self._future is None:
            return
        waited = time.perf_counter()
        if self._stretch.goal is None and not self._stretch.enough.done():
            self._stretch.enough.set_result(None)
        # interrupted here, everything stays as it is for close()
        wait([self._future])
        future = self._future
        self._future = None
        self._phase.close()
        ended = future.result()
        self._overlap = max(min(waited, ended) - self._began, 0.0)

    def _give_up_collection(self) -> None:
        """Keep what was played, and play on from there with engines that were started again."""
        if self._collection is not None:
            self._known = self._collection.played_ahead()
            self._thread.submit(self._collection.close).result()
            self._collection = None


def check_background_generation(groups: PolicyWorkers, settings: RolloutSettings) -> None:
    """Make sure that every group can learn while its engine generates.

    Args:
        groups: Worker groups by name.
        settings: How training trajectories are played.

    Raises:
        ConfigError: Engines do not stay awake, or one generates with weights that are trained.
    """
    what = f"rollout.max_staleness={settings.max_staleness} generates while groups learn"
    if settings.residency != "all":
        raise ConfigError(
            f"{what}, so all engines stay awake; set rollout.residency=all, got {settings.residency}"
        )
    for name, group in groups.items():
        if group.fabric is None and not group.generates_while_training:
            raise ConfigError(
                f"{what}, but a process of cluster=ray does one thing at a time; use engine=sglang with engine.release=nothing, "
                "cluster=local, or rollout.max_staleness=0"
            )
        if not group.generates_while_training:
            raise ConfigError(
                f"{what}, but the engine of worker group {name!r} uses the weights or the memory of its trainer; use engine=sglang with "
                "engine.release=nothing, or engine.copy=true with engine=transformers, or rollout.max_staleness=0"
            )
        if group.settings.update.offload != "none":
            raise ConfigError(
                f"{what}, but worker group {name!r} has update.offload={group.settings.update.offload}, which moves weights meanwhile; "
                "set update.offload=none"
            )
