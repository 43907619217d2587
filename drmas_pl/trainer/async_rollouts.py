"""Playing the next iteration's tasks while this one's groups learn.

::

    engines   play 0 ── play 1 ──── play 2 ──── play 3 …
    groups              learn 0 ─── learn 1 ─── learn 2 …

Iteration n is played with the weights that the updates up to n − 2 have made and learns after update n − 1: its samples are one update old,
the first one's none. Between two iterations everything stands still: engines are given the newest weights, and whoever needs them or the
engines (validation, checkpoints) waits for that moment. What has been played by then is kept, and is part of a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from threading import Event
from typing import Any

from drmas_pl.data.module import TaskDataModule
from drmas_pl.engines.base import Engine
from drmas_pl.errors import BatchError, ConfigError, TrainingStopped
from drmas_pl.rollout.collector import Collector
from drmas_pl.rollout.dynamic_sampling import RolloutBatch
from drmas_pl.trainer.metrics import staleness_metrics
from drmas_pl.trainer.sync_rollouts import SyncRollouts
from drmas_pl.types import Completion, GenerationRequest
from drmas_pl.workers.background_weight_sync import BackgroundWeightSync
from drmas_pl.workers.engine_phases import Residency, engines_ahead
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.protocols import PolicyWorkerProtocol


class AsyncRollouts(SyncRollouts):
    """Plays in a thread, one iteration ahead. All methods belong to the thread of the training loop.

    Args:
        collector: See :class:`SyncRollouts`.
        data: See :class:`SyncRollouts`.
        groups: Worker groups by name, whose engines can generate while they learn.
        last: Number of iterations of the run.
        kept: What an earlier part of the run has played for the first iteration of this one.
        **settings: See :class:`SyncRollouts`.

    Raises:
        ConfigError: An engine generates with weights that are trained, or does not stay awake.
    """

    leaves_engines_idle = False

    def __init__(
        self,
        collector: Collector,
        data: TaskDataModule,
        groups: Mapping[str, PolicyWorkerProtocol],
        *,
        last: int,
        kept: RolloutBatch | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(collector, data, groups, **settings)
        self._alone = check_groups(groups, self.settings.residency)
        self._last, self._kept = last, kept
        self._newest: Mapping[str, int] = {}
        self._began = self._overlap = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._future: Future[tuple[RolloutBatch, float]] | None = None
        self._phase = ExitStack()
        self._stopped = Event()

    def take(self, index: int) -> RolloutBatch:
        """Return what was played for an iteration, and begin to play the next one with the newest weights.

        Raises:
            BatchError: It was played with weights that are more than one update old.
            TrainingStopped: Too many trajectories failed.
        """
        drawn = self.finish()
        if drawn is None:
            self._begin(index)
            drawn = self.finish()
        assert drawn is not None
        self._kept, self._newest = None, self.versions()
        check_staleness(drawn.versions, self._newest)
        if index + 1 < self._last:
            self._begin(index + 1)
        return drawn

    def finish(self) -> RolloutBatch | None:
        """Wait for the end of what is being played, put the engines to sleep, and return what is kept for the next iteration.

        Raises:
            TrainingStopped: Too many trajectories failed.
        """
        if self._future is None:
            return self._kept
        waited = time.perf_counter()
        # interrupted here, everything stays as it is for stop()
        wait([self._future])
        future, self._future = self._future, None
        self._phase.close()
        self._kept, ended = future.result()
        self._overlap = max(min(waited, ended) - self._began, 0.0)
        return self._kept

    def stop(self) -> None:
        """End what is being played with its next request, and forget it."""
        self._stopped.set()
        with suppress(Exception):
            self.finish()
        self._thread.shutdown()

    def metrics(self, drawn: RolloutBatch) -> dict[str, float]:
        """Add how many updates old the turns are, and for how many seconds they were played while the groups learnt."""
        return {
            **super().metrics(drawn),
            **staleness_metrics(drawn.trajectories, self._newest),
            "time/overlap": self._overlap,
        }

    def _begin(self, index: int) -> None:
        with BackgroundWeightSync(idle=True) as handover:
            for group in self._alone.values():
                handover.begin(group)
        engines = self._phase.enter_context(engines_ahead(self._alone))
        guarded = {id(engine): _Stoppable(engine, self._stopped) for engine in engines.values()}
        mine = {agent: guarded[id(engine)] for agent, engine in engines.items()}
        self._began = time.perf_counter()
        self._future = self._thread.submit(self._play_timed, mine, self.versions(), index)

    def _play_timed(
        self, engines: Mapping[str, Engine], versions: Mapping[str, int], index: int
    ) -> tuple[RolloutBatch, float]:
        return self._play(engines, versions, index), time.perf_counter()


class _Stoppable(Engine):
    """Refuses every request once the run has ended."""

    def __init__(self, engine: Engine, stopped: Event) -> None:
        self._engine, self._stopped = engine, stopped
        self.context_length = engine.context_length

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Continue every prompt once."""
        return self.begin(requests)()

    def begin(self, requests: Sequence[GenerationRequest]) -> Callable[[], list[Completion]]:
        """Begin to continue every prompt."""
        if self._stopped.is_set():
            raise TrainingStopped("the run ended while its next iteration was played")
        return self._engine.begin(requests)


def check_staleness(versions: Mapping[str, int], newest: Mapping[str, int]) -> None:
    """Assert that weights which have played are at most one update old.

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


def check_groups(groups: Mapping[str, PolicyWorkerProtocol], residency: Residency) -> dict[str, PolicyWorker]:
    """Make sure that every group can learn while its engine generates, and return the groups.

    Args:
        groups: Worker groups by name.
        residency: Engines awake during a rollout.

    Raises:
        ConfigError: Engines do not stay awake, or one generates with weights that are trained.
    """
    what, found = "rollout.staleness=1 generates while groups learn", {}
    if residency != "all":
        raise ConfigError(f"{what}, so all engines stay awake; set rollout.residency=all, got {residency}")
    for name, group in groups.items():
        if not isinstance(group, PolicyWorker):
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
        found[name] = group
    return found
