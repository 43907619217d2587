"""Plays the training tasks of an iteration, before its groups learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from drmas_pl.agent import Agent
from drmas_pl.algorithms.credit_rules import CreditRule
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.data.module import TaskDataModule
from drmas_pl.engines.base import Engine
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.rollout.dynamic_sampling import RolloutBatch, draw_and_play
from drmas_pl.rollout.filtering import tasks_with_signal
from drmas_pl.team import Team
from drmas_pl.trainer.fault_tolerance import StageRetry
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.types import Trajectory
from drmas_pl.workers.engine_phases import awake_engines
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.protocols import PolicyWorkerProtocol


def make_collector(
    team: Team, agents: Mapping[str, Agent], settings: RolloutSettings, *, failure_log: Path | None = None
) -> Collector:
    """Build the collector that plays as the settings say; tracebacks of faults go to ``failure_log``."""
    return Collector(
        team,
        agents,
        max_calls=settings.max_calls,
        env_workers=settings.env_workers,
        max_concurrent=settings.max_concurrent,
        retries=settings.retries,
        max_failed_share=settings.max_failed_share,
        failure_log=failure_log,
    )


class SyncRollouts:
    """Draws tasks and plays them in turns with learning.

    Args:
        collector: Plays the team.
        data: Where tasks come from.
        groups: Worker groups by name.
        settings: Samples, draws and residency.
        credit: Decides, with dynamic sampling, which tasks carry signal.
        seed: Run seed.
        recovery: Repeats what a lost group has spoilt.
    """

    def __init__(
        self,
        collector: Collector,
        data: TaskDataModule,
        groups: Mapping[str, PolicyWorkerProtocol],
        *,
        settings: RolloutSettings,
        credit: CreditRule | None,
        seed: int,
        recovery: StageRetry,
    ) -> None:
        self.collector, self.data, self.groups = collector, data, groups
        self.settings, self.credit, self.seed, self.recovery = settings, credit, seed, recovery
        self._synced = 0.0

    def take(self, index: int) -> RolloutBatch:
        """Return the played tasks of an iteration, counted from 0.

        Raises:
            TrainingStopped: Too many trajectories failed.
        """
        return self.recovery.run(self._play_now, index)

    def finish(self) -> RolloutBatch | None:
        """Bring engines to rest; return what has been played for the next iteration."""
        return None

    def stop(self) -> None:
        """End whatever still plays, for good."""

    @property
    def leaves_engines_idle(self) -> bool:
        """Whether engines have nothing to do while groups learn, and need not make room for each other."""
        return self.settings.residency == "all"

    def versions(self) -> dict[str, int]:
        """Return the version of every agent's newest weights."""
        return {agent: group.weights_version for group in self.groups.values() for agent in group.agents}

    def metrics(self, drawn: RolloutBatch) -> dict[str, float]:
        """Return which weights agents have now, and how long engines with weights of their own took to get theirs since the last call."""
        found = {
            f"train/{agent}/weights_version": float(version) for agent, version in self.versions().items()
        }
        before, self._synced = (
            self._synced,
            sum(group.sync_seconds for group in self.groups.values() if isinstance(group, PolicyWorker)),
        )
        if any(group.engine.own_weights for group in self.groups.values()):
            found["time/sync"] = self._synced - before
        return found

    def _play_now(self, index: int) -> RolloutBatch:
        with awake_engines(self.groups, self.settings.residency) as engines:
            return self._play(engines, self.versions(), index)

    def _play(self, engines: Mapping[str, Engine], versions: Mapping[str, int], index: int) -> RolloutBatch:
        """Play an iteration's tasks with awake engines that hold the given versions."""
        phase = Phase("train", self.seed, index, self.settings.samples)
        drawn = draw_and_play(
            self.data,
            lambda tasks: self.collector.collect(tasks, engines, phase),
            iteration=index,
            max_draws=self.settings.max_draws,
            with_signal=self._with_signal,
        )
        return replace(drawn, versions=versions)

    def _with_signal(self, trajectories: Sequence[Trajectory]) -> set[str]:
        return tasks_with_signal(build_turn_batch(trajectories, self.collector.agents, credit=self.credit))
