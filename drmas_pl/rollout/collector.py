"""Plays many trajectories at once: each is its own coroutine, which goes on the moment that its own completion is there.

When it may go on is the business of :mod:`drmas_pl.rollout.scheduler`; what is sampled depends on prompts and derived seeds alone. A
trajectory that raises is recorded as failed with its cause and never as reward 0.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from drmas_pl.agent import Agent
from drmas_pl.engines.base import Engine
from drmas_pl.errors import BatchError, EngineError, GroupLost, TrainingStopped
from drmas_pl.parsing import Parsed
from drmas_pl.prompts import Prompt
from drmas_pl.rollout.causes import FailureLog, describe_cause
from drmas_pl.rollout.env_threads import EnvExecutor, EnvThreads
from drmas_pl.rollout.episode import Episode
from drmas_pl.rollout.scheduler import AttemptRecord, Scheduler
from drmas_pl.rollout.timeline import Span, Timeline
from drmas_pl.rollout.tree import (
    Subtree,
    TreeSampling,
    choose,
    compared,
    number_candidates,
    pay_candidates,
    score_candidates,
    trial_moves,
    whole_trajectory,
)
from drmas_pl.seeding import derive_seed
from drmas_pl.team import Call, Team
from drmas_pl.types import Completion, GenerationRequest, Mode, SamplingParams, Task, Trajectory, Turn
from drmas_pl.utils.containment import Containment
from drmas_pl.utils.validation import check_arguments, check_returned

log = logging.getLogger(__name__)
# new objects between two looks for reference cycles
_OBJECTS_PER_GC = 50_000
# share of the time that engines may wait for environment steps before somebody is told
_LONG_WAIT = 0.1
Result = TypeVar("Result")
# whose turn it is; every trajectory is a task of its own and so has a value of its own
_speaker: ContextVar[str | None] = ContextVar("speaker", default=None)


@dataclass(frozen=True, slots=True)
class Phase:
    """What a collection is for; part of every derived seed.

    Attributes:
        name: ``train``, ``validation``, ``test`` …
        seed: Run seed.
        iteration: Training iteration; evaluation uses 0 so that every evaluation draws the same samples.
        samples: Trajectories per task.
        sampling: Overrides of each agent's sampling, field by field.
        retries: How often a trajectory that raised is played again from its start; None leaves it to the collector.
        tree: How trees are grown; None samples every trajectory on its own.
    """

    name: str
    seed: int = 0
    iteration: int = 0
    samples: int = 1
    sampling: Mapping[str, Any] | None = None
    retries: int | None = None
    tree: TreeSampling | None = None


class Collector:
    """Plays a team on tasks.

    Args:
        team: Prototype; each trajectory plays a clone of it.
        agents: Agents by name; every name in ``team.possible_agents`` must be there.
        max_calls: Bound on turns per trajectory, against teams that never end; agents that move at once have a turn each, and all
            candidates for one are a single turn.
        env_workers: Threads for environment steps; 0 steps in the event loop, right for environments that answer at once.
        env_latency: Engine steps after which a trajectory goes on whose environment step ran in a thread, for engines that compute in this
            process; equal runs then see equal batches, however long the environment takes.
        env_timeout: Seconds that an environment step may take in a thread before its trajectory fails; None sets no limit.
        env_executor: Makes what runs environment steps, in place of threads.
        max_concurrent: Largest number of trajectories played at a time; None plays all.
        retries: How often a trajectory that raised is played again from its start.
        max_failed_share: Share of failed trajectories above which the run stops.
        failure_log: File for the tracebacks of trajectories that raised; None keeps none.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An agent of the team is missing, or somebody else is there.
    """

    def __init__(
        self,
        team: Team,
        agents: Mapping[str, Agent],
        *,
        max_calls: int = 64,
        env_workers: int = 0,
        env_latency: int = 16,
        env_timeout: float | None = None,
        env_executor: Callable[[], EnvExecutor] | None = None,
        max_concurrent: int | None = None,
        retries: int = 0,
        max_failed_share: float = 0.2,
        failure_log: Path | None = None,
    ) -> None:
        check_arguments(Collector.__init__, locals())
        extra = sorted(set(agents) - set(team.possible_agents))
        if extra:
            raise ValueError(
                f"the team {type(team).__name__} has agents {list(team.possible_agents)}, got {extra} as well; leave them out"
            )
        missing = [name for name in team.possible_agents if name not in agents]
        if missing:
            raise ValueError(
                f"the team {type(team).__name__} needs agents {missing}, got {sorted(agents)}; add them to agents.roles"
            )
        self.team = team
        self.agents = dict(agents)
        team.use_agents(self.agents)
        self.max_calls = max_calls
        self.env_workers = env_workers
        self.env_latency = env_latency
        self.env_timeout = env_timeout
        self.env_executor = env_executor
        self.max_concurrent = max_concurrent
        self.retries = retries
        self.max_failed_share = max_failed_share
        self.failures = FailureLog(failure_log)

    def collect(
        self,
        tasks: Sequence[Task],
        engines: Mapping[str, Engine],
        phase: Phase,
        *,
        timeline: Timeline | None = None,
        stop: Future[None] | None = None,
    ) -> list[Trajectory]:
        """Play ``phase.samples`` trajectories per task.

        Args:
            tasks: Tasks to play; one that comes again is played again, its samples numbered on.
            engines: Awake engine by agent name; agents of one worker group share one object.
            phase: Purpose, seeds and sampling.
            timeline: Where to note what trajectories wait for.
            stop: Ends the collection once it is resolved, from any thread.

        Returns:
            Trajectories ordered by task, then sample.

        Raises:
            TrainingStopped: More trajectories failed than ``max_failed_share`` allows, with the first cause in the message; or a guard
                of the environment ended the run; or it was stopped.
            GroupLost: A process that generates died; the collection can be repeated once its group runs again.
        """
        # entered in this thread, so that a Ctrl-C inside user code is told from an error of that code
        with Containment() as containment:
            return _run(self._collect(tasks, engines, phase, timeline, stop, containment))

    async def collect_async(
        self,
        tasks: Sequence[Task],
        engines: Mapping[str, Engine],
        phase: Phase,
        *,
        timeline: Timeline | None = None,
        stop: Future[None] | None = None,
    ) -> list[Trajectory]:
        """Play in the event loop that runs; see :meth:`collect`."""
        with Containment() as containment:
            return await self._collect(tasks, engines, phase, timeline, stop, containment)

    def make_scheduler(self, engines: Mapping[str, Engine]) -> Scheduler:
        """Return what decides when trajectories go on."""
        return Scheduler(
            engines.values(),
            env_executor=self.make_env_executor(),
            env_latency=self.env_latency,
            env_timeout=self.env_timeout,
        )

    def make_env_executor(self) -> EnvExecutor | None:
        """Return what runs the environment steps of one collection; None runs them in the event loop."""
        if self.env_executor is not None:
            return self.env_executor()
        return EnvThreads(self.env_workers) if self.env_workers else None

    async def _collect(
        self,
        tasks: Sequence[Task],
        engines: Mapping[str, Engine],
        phase: Phase,
        timeline: Timeline | None,
        stop: Future[None] | None,
        containment: Containment,
    ) -> list[Trajectory]:
        jobs = number_samples(tasks, phase.samples, Counter())
        session = Session(self, engines, phase, containment=containment, timeline=timeline or Timeline())
        with rare_garbage_collection():
            trajectories = await until_stopped(stop, session.run(jobs))
        if len(trajectories) != len(jobs):
            raise BatchError(f"expected {len(tasks)} x {phase.samples} trajectories, got {len(trajectories)}")
        self.check_failures(trajectories)
        return trajectories

    def check_failures(self, trajectories: Sequence[Trajectory]) -> None:
        """Say that trajectories failed, and stop the run if too many did.

        Raises:
            TrainingStopped: More of them failed than ``max_failed_share`` allows.
        """
        failed = [trajectory for trajectory in trajectories if trajectory.failed]
        if failed:
            log.warning(
                "%d of %d trajectories failed; first cause: %s%s",
                len(failed),
                len(trajectories),
                failed[0].cause,
                self._tracebacks(),
            )
        if len(failed) > self.max_failed_share * len(trajectories):
            raise TrainingStopped(
                f"{len(failed)} of {len(trajectories)} trajectories failed, more than max_failed_share={self.max_failed_share} allows; "
                f"first cause (task {failed[0].task.id!r}): {failed[0].cause}{self._tracebacks()}"
            )

    def _tracebacks(self) -> str:
        return "" if self.failures.path is None else f"; tracebacks are in {self.failures.path}"


def number_samples(tasks: Sequence[Task], samples: int, played: Counter[str]) -> list[tuple[Task, int]]:
    """Return every task with the numbers of its samples; one that comes again is numbered on, also behind what was ``played`` before."""
    jobs = []
    for task in tasks:
        jobs += [(task, played[task.id] + sample) for sample in range(samples)]
        played[task.id] += samples
    return jobs


def spoken_turn(agent: Agent, prompt: Prompt, completion: Completion) -> Turn:
    """Return what an agent said as a turn that does not know its place in the trajectory yet.

    Raises:
        ContractError: The agent's grammar returned something else than a Parsed.
    """
    text = agent.decode(completion.token_ids)
    parsed = agent.parse(text, completion.finish_reason)
    check_returned(
        f"what the grammar of {agent.name!r} returns",
        parsed,
        Parsed,
        "a Parsed, such as Parsed('valid', action=text)",
    )
    return Turn(
        agent=agent.name,
        index=0,
        agent_index=0,
        prompt_ids=prompt.ids,
        response_ids=completion.token_ids,
        logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        text=text,
        parsed=parsed,
        weights_version=completion.weights_version,
        later_versions=completion.later_versions,
        prompt_truncated=prompt.truncated,
        prompt_hash=hash(prompt.ids),
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """What one agent is asked, rendered."""

    agent: Agent
    prompt: Prompt
    request: GenerationRequest


def _candidate_calls(call: _Call, count: int) -> Iterator[_Call]:
    """Yield calls with one prompt and a seed for each candidate; the first is what parallel sampling would ask."""
    yield call
    asked = call.request
    for number in range(1, count):
        seed = derive_seed(asked.seed, number)
        yield replace(call, request=replace(asked, seed=seed, order=(*asked.order, number)))


class Session:
    """One call of :meth:`Collector.collect`, or one iteration among several that are played at the same time."""

    def __init__(
        self,
        collector: Collector,
        engines: Mapping[str, Engine],
        phase: Phase,
        *,
        containment: Containment,
        timeline: Timeline,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.collector = collector
        self.engines = engines
        self.phase = phase
        self.containment = containment
        self.timeline = timeline
        self.clock = asyncio.get_running_loop().time
        greedy = all(self.sampling(agent).temperature == 0 for agent in collector.agents.values())
        self.mode: Mode = "greedy" if greedy else "sampled"
        self.scheduler = scheduler or collector.make_scheduler(engines)
        self.env_executor = self.scheduler.env_executor

    async def run(self, jobs: Sequence[tuple[Task, int]]) -> list[Trajectory]:
        """Play every job, at most ``max_concurrent`` at a time, and begin with the first."""
        found: dict[int, Trajectory] = {}
        waiting = iter(enumerate(jobs))

        async def work() -> None:
            for place, (task, sample) in waiting:
                found[place] = await self.play(task, sample)

        workers = min(self.collector.max_concurrent or len(jobs), len(jobs))
        started = self.clock()
        try:
            await self.scheduler.run([work() for _ in range(workers)])
        finally:
            seconds = self.clock() - started
            self.timeline.seconds += seconds
            if self.env_executor is not None:
                self.env_executor.shutdown()
        if self.scheduler.engines_waited > _LONG_WAIT * seconds:
            log.warning(
                "engines waited %.1f of %.1f s for environment steps, which last longer than rollout.env_latency=%d steps of the engines; "
                "raise it",
                self.scheduler.engines_waited,
                seconds,
                self.collector.env_latency,
            )
        return [found[place] for place in sorted(found)]

    async def play(self, task: Task, sample: int, record: AttemptRecord | None = None) -> Trajectory:
        """Play one trajectory, again after a fault, and turn what remains a fault into a record.

        Args:
            task: What to play.
            sample: Which sample of the task.
            record: What an earlier part of the run has played of it, to go on from; kept up to date for a later part.
        """
        cause = ""
        first = 0 if record is None else record.attempt
        retries = self.collector.retries if self.phase.retries is None else self.phase.retries
        for attempt in range(first, retries + 1):
            if record is not None:
                record.begin(attempt)
            try:
                return await self.attempt(task, sample, attempt)
            except (TrainingStopped, GroupLost):
                raise
            except (
                Exception
            ) as error:  # isolation: whatever environment or team code raises must cost one trajectory only
                cause = describe_cause(error, agent=_speaker.get())
                title = f"{self.phase.name} {self.phase.iteration}, task {task.id!r}, sample {sample}, attempt {attempt}"
                self.collector.failures.write(title, cause, error)
        return Trajectory(task, sample, (), 0.0, "failed", cause=cause, mode=self.mode)

    async def attempt(self, task: Task, sample: int, attempt: int) -> Trajectory:
        phase = self.phase
        with self.containment.guard:
            team = self.collector.team.clone()
        seed = derive_seed(phase.seed, phase.name, phase.iteration, task.id, sample, attempt)
        number = self.timeline.begin_trajectory()
        _speaker.set(None)
        observation, _ = await self.environment(
            number, lambda: team.reset(seed=seed % (1 << 32), options={"task": task})
        )
        episode = Episode(team, observation, max_calls=self.collector.max_calls)
        tree = phase.tree
        if tree is not None and tree.select == "all":
            return whole_trajectory(await self.grow(task, sample, episode, number, tree, seed=seed))
        while calls := self.ask_all(episode, seed, (task.id, sample)):
            if tree is not None and any(tree.count(call.agent.name) > 1 for call in calls):
                await self.branch(task, episode, number, calls, tree)
                continue
            turns = episode.place(await self.speak(number, calls))
            await self.advance(episode, number, turns)
        return episode.trajectory(task, sample, mode=self.mode)

    async def grow(
        self,
        task: Task,
        sample: int,
        episode: Episode,
        number: int,
        tree: TreeSampling,
        *,
        seed: int,
        path: tuple[int, ...] = (),
    ) -> list[Subtree]:
        """Try every candidate of the next move, and all that follows from each; nothing when the episode is over."""
        calls = self.ask_all(episode, seed, (task.id, sample, *path))
        if not calls:
            return []
        branches = len(episode.turns) < tree.depth
        asked = [
            list(_candidate_calls(call, tree.count(call.agent.name) if branches else 1)) for call in calls
        ]
        spoken = iter(await self.speak(number, [call for own in asked for call in own]))
        sampled = [[next(spoken) for _ in own] for own in asked]
        candidates = number_candidates(episode.place([own[0] for own in sampled]), sampled)

        async def follow(place: int) -> Subtree:
            # an agent that never learns says the same beside every candidate of the others
            turns = [replace(own[min(place, len(own) - 1)], candidate=place) for own in candidates]
            twin = episode.fork(teams[place])
            await self.advance(twin, number, turns)
            further = derive_seed(seed, "branch", *path, place) if place else seed
            children = await self.grow(task, sample, twin, number, tree, seed=further, path=(*path, place))
            end = None if children else twin.trajectory(task, sample, mode=self.mode)
            return Subtree(tuple(twin.turns[-len(turns) :]), tuple(children), end)

        width = max(map(len, candidates))
        teams = [self.containment.call(episode.team.clone) for _ in range(width)]
        return await self.scheduler.gather([follow(place) for place in range(width)])

    async def advance(self, episode: Episode, number: int, turns: Sequence[Turn]) -> None:
        """Let a move happen."""
        # what several agents said at once is nobody's fault in particular
        _speaker.set(turns[0].agent if len(turns) == 1 else None)
        outcome = await self.environment(number, partial(episode.team.hear, turns))
        episode.add(turns, outcome)

    async def branch(
        self, task: Task, episode: Episode, number: int, calls: Sequence[_Call], tree: TreeSampling
    ) -> None:
        """Sample candidates for a move, try each on its own copy, and go on from the copy of the one that is chosen."""
        asked = [list(_candidate_calls(call, tree.count(call.agent.name))) for call in calls]
        spoken = iter(await self.speak(number, [call for own in asked for call in own]))
        sampled = [[next(spoken) for _ in own] for own in asked]
        candidates = number_candidates(episode.place([own[0] for own in sampled]), sampled)
        _speaker.set(calls[0].agent.name if len(calls) == 1 else None)
        teams = {}
        steps = []
        for trial in trial_moves([len(own) for own in candidates]):
            teams[trial] = self.containment.call(episode.team.clone)
            move = [own[place] for own, place in zip(candidates, trial)]
            steps.append(self.environment(number, partial(teams[trial].hear, move)))
        outcomes = dict(zip(teams, await self.scheduler.gather(steps)))
        paid = await self.compare(episode.team, number, pay_candidates(candidates, outcomes))
        winners = tuple(self.select(task, own, tree, call.request.seed) for call, own in zip(calls, paid))
        episode.candidates += [turn for own in paid if len(own) > 1 for turn in own]
        turns = [own[place] for own, place in zip(candidates, winners)]
        if winners in outcomes:
            episode.team = teams[winners]
            episode.add(turns, outcomes[winners])
        else:
            # winners of several agents that were each tried beside the others' first candidates
            await self.advance(episode, number, turns)

    async def compare(self, team: Team, number: int, paid: list[list[Turn]]) -> list[list[Turn]]:
        """Add local rewards that only all candidates together can tell, if the team knows any."""
        if type(team).compare is Team.compare:
            return paid
        told = {own[0].agent: [turn.parsed for turn in own] for own in paid}
        twin = self.containment.call(team.clone)
        found = await self.environment(number, partial(twin.compare, told))
        what = f"{type(team).__name__}.compare"
        return [compared(own, found[own[0].agent], what) if own[0].agent in found else own for own in paid]

    def select(self, task: Task, candidates: Sequence[Turn], tree: TreeSampling, seed: int) -> int:
        """Return the number of the candidate that is played."""
        if len(candidates) == 1:
            return 0
        scores = score_candidates(task, candidates, self.collector.agents, credit=tree.credit)
        return choose(scores, tree.select, temperature=tree.temperature, seed=derive_seed(seed, "select"))

    def ask_all(self, episode: Episode, seed: int, order: tuple[Any, ...]) -> list[_Call]:
        """Render what is asked now; nothing when the episode is over or too few calls are left."""
        names = episode.team.agents_selection
        _speaker.set(names[0] if names else None)
        with self.containment.guard:
            calls = episode.calls()
        return [
            self.ask(call, derive_seed(seed, *(call.seed_key or (call.agent, index))), (*order, index))
            for index, call in enumerate(calls, len(episode.turns))
        ]

    def ask(self, call: Call, seed: int, order: tuple[Any, ...]) -> _Call:
        """Render what one agent sees now."""
        _speaker.set(call.agent)
        agent = self.collector.agents[call.agent]
        with self.containment.guard:
            prompt = agent.render(call.observation)
        sampling = call.sampling(self.sampling(agent))
        return _Call(agent, prompt, GenerationRequest(prompt.ids, sampling, seed, order))

    async def speak(self, number: int, calls: Sequence[_Call]) -> list[Turn]:
        """Have agents sample their utterances, all at the same time, and return them in order."""
        started = self.clock()
        completions = await self.scheduler.complete(
            [(self.engines[call.agent.name], call.request) for call in calls]
        )
        ended = self.clock()
        turns = []
        for call, completion in zip(calls, completions):
            name = call.agent.name
            _speaker.set(name)
            self.timeline.spans.append(Span(number, name, started, ended, len(completion.token_ids)))
            if completion.finish_reason == "abort":
                raise EngineError(
                    f"the engine aborted a response of {name!r} after {len(completion.token_ids)} tokens; its log says why"
                )
            with self.containment.guard:
                turns.append(spoken_turn(call.agent, call.prompt, completion))
        return turns

    def sampling(self, agent: Agent) -> SamplingParams:
        """Return the agent's sampling with the phase's overrides."""
        return replace(agent.sampling, **self.phase.sampling) if self.phase.sampling else agent.sampling

    async def environment(self, number: int, call: Callable[[], Any]) -> Any:
        """Run environment code, in a thread when there are threads for it."""
        started = self.clock()
        if self.env_executor is None:
            with self.containment.guard:
                found = call()
        else:
            found = await self.scheduler.environment(partial(self.containment.call, call))
        self.timeline.spans.append(Span(number, None, started, self.clock()))
        return found


async def until_stopped(stop: Future[None] | None, session: Coroutine[Any, Any, Result]) -> Result:
    """Run a session to its end, or until ``stop`` is resolved."""
    if stop is None:
        return await session
    loop = asyncio.get_running_loop()
    playing = asyncio.ensure_future(session)
    halted = False

    def halt() -> None:
        nonlocal halted
        halted = True
        playing.cancel()

    def end(_: Future[None]) -> None:
        # a loop that is closed has nothing to end
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(halt)

    stop.add_done_callback(end)
    try:
        return await playing
    except asyncio.CancelledError:
        if not halted:
            raise
        raise TrainingStopped("the run ended while trajectories were played") from None


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Let Python look for reference cycles less often: trajectories have none, and looking through them costs a third of the time."""
    thresholds = gc.get_threshold()
    # 0 means never, which is left alone
    gc.set_threshold(max(thresholds[0], _OBJECTS_PER_GC) if thresholds[0] else 0, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _run(session: Coroutine[Any, Any, list[Trajectory]]) -> list[Trajectory]:
    """Run to the end, in a thread of its own where this one already has an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # played below, outside of the handler: tracebacks of faults would begin with this error
        running = False
    else:
        running = True
    if not running:
        return asyncio.run(session)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, session).result()
