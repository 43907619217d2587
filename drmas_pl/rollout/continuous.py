"""Plays one iteration after another without a pause between them; new weights come in the middle of trajectories.

::

    weights      0                1                2                3
    iteration 0  ████████ update ▶
    iteration 1  ░░░░░░░░████████│ update ▶
    iteration 2  ░░░░░░░░░░░░░░░░│████████████████│ update ▶
    iteration 3                  │░░░░░░░░░░░░░░░░│████████

An iteration may begin as soon as so many updates are made that its samples will be at most ``max_staleness`` of them old. All that may
begin are played at the same time, earlier ones first, so that the slow trajectories of one iteration run beside those of the next.

A *stretch* is what is played with one version of the weights. At its end engines give back what they have sampled, and every trajectory
comes to the point where it needs an engine; the next stretch goes on from there. Where all engines compute in this process, a stretch
ends when the rollout that it is for is complete, which depends on the game alone, so that equal runs are equal to the last bit. An engine
that works by itself need not wait for that: the stretch ends the moment that new weights are there.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace

from drmas_pl.engines.base import Engine
from drmas_pl.errors import TrainingStopped
from drmas_pl.rollout.collector import (
    Collector,
    Phase,
    Session,
    number_samples,
    rare_garbage_collection,
    until_stopped,
)
from drmas_pl.rollout.dynamic_sampling import RolloutBatch
from drmas_pl.rollout.played_ahead import PlayedAhead, Sample
from drmas_pl.rollout.scheduler import AttemptRecord, attempt_record
from drmas_pl.rollout.timeline import Timeline
from drmas_pl.types import Task, Trajectory
from drmas_pl.utils.containment import Containment

Draws = Generator[Sequence[Task], list[Trajectory], RolloutBatch]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is played with one version of the weights.

    Attributes:
        oldest: First iteration that was not taken yet.
        newest: Last iteration that may be played.
        goal: Iteration whose rollout ends the stretch; None where only ``enough`` does, or that everything is complete.
        enough: Resolved, from any thread, it ends the stretch.
    """

    oldest: int
    newest: int
    goal: int | None
    enough: Future[None] = field(default_factory=Future)


@dataclass(slots=True)
class _Awaited:
    """Trajectories that an iteration waits for."""

    over: asyncio.Future[None]
    missing: int = 0


@dataclass(order=True, slots=True)
class _Job:
    """A trajectory to play; those of earlier iterations come first."""

    iteration: int
    number: int
    task: Task = field(compare=False)
    sample: int = field(compare=False)
    session: Session = field(compare=False)
    awaited: _Awaited = field(compare=False)

    @property
    def key(self) -> Sample:
        return self.task.id, self.sample


class ContinuousCollection:
    """The rollouts of a run, played in an event loop that stands still between two stretches.

    Args:
        collector: Plays trajectories.
        engines: Engine by agent name, the same in every stretch.
        phase: Returns purpose, seeds and sampling of an iteration, counted from 0.
        draws: Returns what decides which tasks an iteration plays, see :func:`~drmas_pl.rollout.dynamic_sampling.draw_tasks`.
        known: What an earlier part of the run has played.
    """

    def __init__(
        self,
        collector: Collector,
        engines: Mapping[str, Engine],
        *,
        phase: Callable[[int], Phase],
        draws: Callable[[int], Draws],
        known: PlayedAhead,
    ) -> None:
        self._collector = collector
        self._engines = dict(engines)
        self._phase = phase
        self._draws = draws
        self._known = known
        self._loop = asyncio.new_event_loop()
        self._scheduler = collector.make_scheduler(engines)
        self._scheduler.suspended = True
        self._containment = Containment()
        self._admitted: set[int] = set()
        self._numbers: Counter[int] = Counter()
        self._waiting: list[_Job] = []
        self._playing = 0
        self._finished: dict[int, dict[Sample, Trajectory]] = {}
        self._begun: dict[int, dict[Sample, AttemptRecord]] = {}
        self._complete: dict[int, Future[RolloutBatch]] = {}

    @property
    def ordered(self) -> bool:
        """Whether all engines compute in this process."""
        return self._scheduler.ordered

    def complete(self, iteration: int) -> Future[RolloutBatch]:
        """Return a future of an iteration's rollout."""
        return self._complete.setdefault(iteration, Future())

    def take(self, iteration: int) -> RolloutBatch | None:
        """Return the rollout of an iteration, which is then forgotten; None if it is not complete.

        Raises:
            TrainingStopped: Too many of its trajectories failed.
        """
        if not self.complete(iteration).done():
            return None
        self._finished.pop(iteration, None)
        return self._complete.pop(iteration).result()

    def played_ahead(self) -> PlayedAhead:
        """Return what was played for iterations that nobody has taken, between two stretches."""
        if self._known.iterations:
            # not gone on from yet
            return self._known
        finished = {iteration: dict(samples) for iteration, samples in self._finished.items() if samples}
        begun = {iteration: dict(samples) for iteration, samples in self._begun.items() if samples}
        return PlayedAhead(finished, begun)

    def play(self, stretch: Stretch, *, stop: Future[None]) -> float:
        """Play a stretch with the engines' present weights, in any thread, and return when it was over (``time.perf_counter``).

        Args:
            stretch: What may be played, and until when.
            stop: Resolved, it ends everything.

        Raises:
            TrainingStopped: Too many trajectories failed, or it was stopped.
        """
        with rare_garbage_collection():
            self._loop.run_until_complete(until_stopped(stop, self._play(stretch)))
        return time.perf_counter()

    def close(self) -> None:
        """End everything, between two stretches."""
        self._loop.run_until_complete(self._scheduler.end())
        self._loop.close()
        if self._scheduler.env_executor is not None:
            self._scheduler.env_executor.shutdown()

    async def _play(self, stretch: Stretch) -> None:
        stretch.enough.add_done_callback(lambda _: self._wake())
        async with self._scheduler.driving():
            if self._known.iterations:
                # everything comes to where it was when the stretch before ended
                self._admit(self._known.iterations)
                await self._scheduler.suspend()
                self._known = PlayedAhead()
            self._scheduler.go_on()
            self._admit(range(stretch.oldest, stretch.newest + 1))
            self._begin_waiting()
            await self._scheduler.drive(lambda: self._is_over(stretch))
            await self._scheduler.suspend()

    def _is_over(self, stretch: Stretch) -> bool:
        # a server that is lost has suspended everything
        if self._scheduler.suspended or self._scheduler.over or stretch.enough.done():
            return True
        return stretch.goal is not None and self.complete(stretch.goal).done()

    def _wake(self) -> None:
        # a loop that is closed has nobody who drives
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._scheduler.wake_driver)

    def _admit(self, iterations: Sequence[int]) -> None:
        for iteration in iterations:
            if iteration not in self._admitted:
                self._admitted.add(iteration)
                self._scheduler.spawn(self._iterate(iteration))

    async def _iterate(self, iteration: int) -> None:
        """Play an iteration's tasks, draw by draw."""
        known = iteration in self._known.iterations
        timeline = Timeline()
        phase = self._phase(iteration)
        session = Session(
            self._collector,
            self._engines,
            phase,
            containment=self._containment,
            timeline=timeline,
            scheduler=self._scheduler,
        )
        began = self._loop.time()
        draws = self._draws(iteration)
        played: Counter[str] = Counter()
        tasks = next(draws)
        while True:
            samples = number_samples(tasks, phase.samples, played)
            trajectories = await self._play_samples(session, samples)
            try:
                self._collector.check_failures(trajectories)
                tasks = draws.send(trajectories)
            except TrainingStopped as error:
                # iterations before this one are trained on all the same
                self.complete(iteration).set_exception(error)
                return
            except StopIteration as end:
                rollout: RolloutBatch = end.value
                break
        timeline.seconds = self._loop.time() - began
        self.complete(iteration).set_result(replace(rollout, timeline=None if known else timeline))

    async def _play_samples(self, session: Session, samples: Sequence[tuple[Task, int]]) -> list[Trajectory]:
        iteration = session.phase.iteration
        finished = self._finished.setdefault(iteration, {})
        known = self._known.finished.get(iteration, {})
        begun = self._known.begun.get(iteration, {})
        awaited = _Awaited(self._loop.create_future())
        for task, sample in samples:
            self._numbers[iteration] += 1
            job = _Job(iteration, self._numbers[iteration], task, sample, session, awaited)
            if job.key in known:
                finished[job.key] = known[job.key]
                continue
            awaited.missing += 1
            if job.key in begun:
                self._begin(job, begun[job.key])
            else:
                heapq.heappush(self._waiting, job)
        self._begin_waiting()
        if awaited.missing:
            await self._scheduler.wait(awaited.over)
        return [finished[task.id, sample] for task, sample in samples]

    def _begin_waiting(self) -> None:
        """Begin with what waits as far as there is room, unless engines are suspended."""
        limit = self._collector.max_concurrent
        while self._waiting and not self._scheduler.suspended and (limit is None or self._playing < limit):
            job = heapq.heappop(self._waiting)
            self._begin(job, AttemptRecord(job.iteration, job.number))

    def _begin(self, job: _Job, record: AttemptRecord) -> None:
        self._playing += 1
        self._begun.setdefault(job.iteration, {})[job.key] = record
        self._scheduler.spawn(self._play_job(job, record))

    async def _play_job(self, job: _Job, record: AttemptRecord) -> None:
        attempt_record.set(record)
        self._finished[job.iteration][job.key] = await job.session.play(job.task, job.sample, record)
        del self._begun[job.iteration][job.key]
        self._playing -= 1
        job.awaited.missing -= 1
        if not job.awaited.missing:
            self._scheduler.resume(job.awaited.over)
        self._begin_waiting()
