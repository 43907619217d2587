"""Lets trajectories wait for completions and environment steps, each for its own, and advances the engines that need it.

A trajectory goes on the moment that what it waits for is there. Engines that work by themselves resolve their futures from threads of their
own. Engines that compute in this process are stepped when no trajectory can go on, all of them at a time, so that what they compute
together depends on the game alone. Environment steps that run in threads would bring the wall clock into that. A trajectory therefore goes
on a fixed number of engine steps after its environment step began, or at once when there is nothing else to do::

    engine steps       s      s+1     s+2     s+3     s+4
    environment        begins ─────────── done
    trajectory         waits ──────────────────────── goes on

With an engine that works by itself there is nothing to keep equal, and nobody waits for anybody.

New weights come between two drives. Before that, :meth:`Scheduler.suspend` has engines give back what they have sampled, and lets every
trajectory come to the point where it needs an engine; afterwards requests go on behind what was sampled of them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from drmas_pl.engines.base import Engine
from drmas_pl.engines.limits import remaining_tokens
from drmas_pl.errors import EngineError, EnvironmentFault, ServerNotReplaced
from drmas_pl.rollout.env_threads import EnvExecutor
from drmas_pl.types import Completion, GenerationRequest

Result = TypeVar("Result")
# longest time between two looks for environment steps that take too long
_WATCH_SECONDS = 1.0


@dataclass(slots=True)
class AttemptRecord:
    """What engines have sampled for one attempt at a trajectory; played again, it is answered from here.

    Attributes:
        iteration: Training iteration that it is for.
        number: Place among all trajectories of the iteration.
        attempt: How often it was played from its start before.
        answers: By seed of the request; one that was suspended has finish reason ``abort``.
    """

    iteration: int
    number: int
    attempt: int = 0
    answers: dict[int, Completion] = field(default_factory=dict)

    def begin(self, attempt: int) -> None:
        """Note which attempt the answers are for; those of earlier ones are of no use to it."""
        if attempt != self.attempt:
            self.attempt = attempt
            self.answers.clear()


# of the trajectory that asks; its coroutines inherit it
attempt_record: ContextVar[AttemptRecord | None] = ContextVar("attempt_record", default=None)


class _Response:
    """One response on its way: what is asked, and what has been sampled so far."""

    __slots__ = ("completion", "engine", "over", "request")

    def __init__(self, engine: Engine, request: GenerationRequest, known: Completion | None) -> None:
        self.engine = engine
        self.request = request
        self.completion = known
        self.over = known is not None and known.finish_reason != "abort"

    @property
    def rest(self) -> GenerationRequest:
        """The request for what is missing."""
        sampled = () if self.completion is None else self.completion.token_ids
        return replace(self.request, sampled_ids=sampled) if sampled else self.request

    def add(self, rest: Completion, *, suspended: bool) -> None:
        """Add what was sampled behind what is there."""
        self.completion = rest if self.completion is None else self.completion.continued(rest)
        self.over = not suspended or rest.finish_reason != "abort"


class _Answers:
    """The answers that one trajectory waits for; ``over`` ends the wait, once all are there or one of them failed."""

    __slots__ = ("failed", "missing", "over", "scheduler")

    def __init__(self, scheduler: Scheduler, missing: int, over: asyncio.Future[None]) -> None:
        self.scheduler = scheduler
        self.missing = missing
        self.over = over
        self.failed: Future[Completion] | None = None

    def resolved(self, future: Future[Completion]) -> None:
        """Take note of an answer, from any thread."""
        self.scheduler.in_loop(self._note, future)

    def _note(self, future: Future[Completion]) -> None:
        self.missing -= 1
        if self.missing and self.failed is None and (future.cancelled() or future.exception()):
            self.failed = future
        if not self.missing or self.failed is not None:
            self.scheduler.resume(self.over)


class _EnvStep:
    """An environment step in a thread.

    ``due`` is the engine step with which its trajectory goes on, ``fault`` why it was given up.
    """

    __slots__ = ("call", "due", "fault", "future", "resumed", "returned", "started")

    def __init__(self, call: Callable[[], Any], due: int, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.due = due
        self.fault: Exception | None = None
        self.started: float | None = None
        self.future: Future[Any]
        self.returned: asyncio.Future[None] = loop.create_future()
        self.resumed: asyncio.Future[None] = loop.create_future()

    def run(self) -> Any:
        """Make the step, in a thread."""
        self.started = time.monotonic()
        return self.call()


class Scheduler:
    """Runs the coroutines of one collection. The other methods are called in the event loop, :meth:`in_loop` from anywhere.

    Args:
        engines: Engines that generate.
        env_executor: Runs environment steps; None where there are none to run.
        env_latency: Engine steps after which a trajectory goes on whose environment step ran beside generation.
        env_timeout: Seconds that an environment step may take in a thread; None sets no limit.

    Attributes:
        engines_waited: Seconds that engines with something to do have waited for environment steps.
        env_executor: Runs environment steps; None where they are made in the event loop.
        ordered: Whether all engines compute in this process, so that equal runs see equal batches.
        suspended: Whether nothing is asked of engines for now.
    """

    def __init__(
        self,
        engines: Iterable[Engine],
        *,
        env_executor: EnvExecutor | None = None,
        env_latency: int = 16,
        env_timeout: float | None = None,
    ) -> None:
        distinct = list({id(engine): engine for engine in engines}.values())
        self._engines = distinct
        self._stepped = [engine for engine in distinct if engine.needs_steps]
        self.ordered = len(self._stepped) == len(distinct)
        self.suspended = False
        # coroutines by their tasks, and the first error of any of them
        self._tasks: dict[asyncio.Task[None], Coroutine[Any, Any, None]] = {}
        self._failure: BaseException | None = None
        self._held: list[tuple[tuple[int, int], asyncio.Future[None]]] = []
        # requests that engines have, and environment steps under way
        self._asked = 0
        self._env_running = 0
        self.env_executor = env_executor
        self._env_latency = env_latency
        self._env_timeout = env_timeout
        self.engines_waited = 0.0
        self._moving = 0
        self._engine_steps = 0
        self._env_steps: deque[_EnvStep] = deque()
        self._watched: dict[int, _EnvStep] = {}
        # what other threads have resolved, and whether the event loop knows
        self._resolved: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._notified = False
        self._quiet: asyncio.Future[None] | None = None

    async def run(self, coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run coroutines to their end; the first that raises ends the others, and what they have asked of engines."""
        try:
            async with self.driving():
                for coroutine in coroutines:
                    self.spawn(coroutine)
                await self.drive(lambda: self.over)
        finally:
            await self.end()

    @asynccontextmanager
    async def driving(self) -> AsyncIterator[None]:
        """Belong to the event loop and the thread that run now, for the duration of the block."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        watch = None if self._env_timeout is None else asyncio.create_task(self._watch())
        try:
            yield
        finally:
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run one more coroutine beside the others."""
        self._moving += 1
        task = asyncio.create_task(self._count_down(coroutine))
        self._tasks[task] = coroutine
        task.add_done_callback(self._ended)

    @property
    def over(self) -> bool:
        """Whether every coroutine has come to its end."""
        return not self._tasks

    async def suspend(self) -> None:
        """Have engines give back what they have sampled, and come to rest: every coroutine waits for :meth:`go_on`."""
        self.suspended = True
        for engine in self._engines:
            engine.suspend()
        await self.drive(lambda: not (self._moving or self._asked or self._env_running))

    def go_on(self) -> None:
        """Ask engines again; those that wait go on in the order of their trajectories, however they came to rest."""
        self.suspended = False
        held = sorted(self._held, key=lambda pair: pair[0])
        self._held.clear()
        for _, over in held:
            self.resume(over)

    async def wait(self, over: asyncio.Future[None]) -> None:
        """Wait for what :meth:`resume` ends."""
        self._pause()
        await over

    async def end(self) -> None:
        """End every coroutine."""
        tasks = dict(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # those that were ended before they began would be reported as forgotten
        for coroutine in tasks.values():
            coroutine.close()

    async def complete(self, calls: Sequence[tuple[Engine, GenerationRequest]]) -> list[Completion]:
        """Generate for requests that belong together, and wait until all of them are answered.

        Raises:
            EngineError: A prompt leaves no room for a token, or an engine failed; requests that are still under way are given up.
        """
        record = attempt_record.get()
        responses = [self._respond(record, engine, request) for engine, request in calls]
        while missing := [response for response in responses if not response.over]:
            # again, since engines may be suspended before it gets to ask them
            while self.suspended and record is not None:
                await self._hold(record)
            try:
                found = await self._ask([(response.engine, response.rest) for response in missing])
            except ServerNotReplaced:
                if record is None:
                    raise
                # asked again with the next weights, which bring another server
                self.suspended = True
                continue
            for response, completion in zip(missing, found, strict=True):
                response.add(completion, suspended=self.suspended and record is not None)
                if record is not None:
                    assert response.completion is not None
                    record.answers[response.request.seed] = response.completion
        return [response.completion for response in responses if response.completion is not None]

    def _respond(self, record: AttemptRecord | None, engine: Engine, request: GenerationRequest) -> _Response:
        # refused here, an overlong prompt fails its own trajectory only
        remaining_tokens(request, engine.context_length)
        if record is None:
            return _Response(engine, request, None)
        return _Response(
            engine, replace(request, iteration=record.iteration), record.answers.get(request.seed)
        )

    async def _hold(self, record: AttemptRecord) -> None:
        """Wait until engines may be asked again."""
        over: asyncio.Future[None] = self._loop.create_future()
        self._held.append(((record.iteration, record.number), over))
        await self.wait(over)

    async def _ask(self, calls: Sequence[tuple[Engine, GenerationRequest]]) -> list[Completion]:
        """Submit requests and wait for all answers, or for the first failure."""
        futures: list[Future[Completion]] = []
        answers = _Answers(self, len(calls), self._loop.create_future())
        self._asked += len(calls)
        try:
            for engine, request in calls:
                futures.append(engine.submit(request))
            self._pause()
            for future in futures:
                future.add_done_callback(answers.resolved)
            await answers.over
            found = futures if answers.failed is None else [answers.failed]
            return [_completion(future) for future in found]
        finally:
            self._asked -= len(calls)
            if answers.missing:
                for future in futures:
                    future.cancel()

    async def gather(self, coroutines: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
        """Run coroutines side by side on behalf of one that waits until all of them are over; the first fault in their order is raised."""
        over: asyncio.Future[None] = self._loop.create_future()
        running = len(coroutines)

        async def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
            nonlocal running
            try:
                return await coroutine
            finally:
                running -= 1
                if not running:
                    # before the pause, so that nobody takes the collection for one that cannot go on
                    self.resume(over)
                self._pause()

        self._moving += running
        tasks = [asyncio.create_task(run(coroutine)) for coroutine in coroutines]
        self._pause()
        try:
            await over
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for coroutine in coroutines:
                coroutine.close()
        return [task.result() for task in tasks]

    async def environment(self, call: Callable[[], Any]) -> Any:
        """Make an environment step beside generation.

        Raises:
            EnvironmentFault: It took longer than the limit.
        """
        assert self.env_executor is not None
        step = _EnvStep(call, self._engine_steps + self._env_latency, self._loop)
        if self.ordered:
            self._env_steps.append(step)
        self._env_running += 1
        step.future = self.env_executor.submit(step.run)
        if self._env_timeout is not None:
            self._watched[id(step)] = step
        step.future.add_done_callback(lambda _: self.in_loop(self._returned, step))
        try:
            await self.wait(step.resumed)
        finally:
            self._env_running -= 1
        if step.fault is not None:
            raise step.fault
        return step.future.result()

    async def _count_down(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        finally:
            self._pause()

    def _pause(self) -> None:
        """Note that a coroutine cannot go on, and tell the driver if it was the last one."""
        self._moving -= 1
        if not self._moving and self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        # looked at whoever failed first, since asyncio reports errors that nobody looks at
        failure = None if task.cancelled() else task.exception()
        if self._failure is None:
            self._failure = failure
        self.wake_driver()

    async def drive(self, over: Callable[[], bool]) -> None:
        """Whenever no trajectory can go on, let those go on whose environment step is due, or else step the engines.

        Args:
            over: Whether to return; asked anew whenever trajectories have moved, or somebody calls :meth:`wake_driver`.

        Raises:
            BaseException: What the first coroutine that failed has raised.
        """
        while self._failure is None and not over():
            if self._moving:
                await self._all_wait()
            elif self._env_steps and self._env_steps[0].due <= self._engine_steps:
                await self._resume_due()
            elif busy := [engine for engine in self._stepped if not engine.idle]:
                # engines on devices of their own work at the same time
                for finish in [engine.begin_step() for engine in busy]:
                    finish()
                self._engine_steps += 1
                # lets in what other threads have resolved, and who wants to end the collection
                await asyncio.sleep(0)
            elif self._env_steps:
                # there is nothing that it could be computed together with
                self._engine_steps = self._env_steps[0].due
            else:
                await self._all_wait()
        if self._failure is not None:
            raise self._failure

    async def _all_wait(self) -> None:
        self._quiet = self._loop.create_future()
        await self._quiet
        self._quiet = None

    def wake_driver(self) -> None:
        """Have the driver look again whether it is over."""
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    async def _resume_due(self) -> None:
        """Wait for every environment step that is due, and resume their trajectories in the order in which the steps began."""
        due = []
        while self._env_steps and self._env_steps[0].due <= self._engine_steps:
            due.append(self._env_steps.popleft())
        started = time.monotonic()
        for step in due:
            await step.returned
        if not all(engine.idle for engine in self._stepped):
            self.engines_waited += time.monotonic() - started
        for step in due:
            self.resume(step.resumed)

    def _returned(self, step: _EnvStep) -> None:
        """Note that an environment step is over; without an order to keep, its trajectory goes on."""
        if step.returned.done():
            return
        self._watched.pop(id(step), None)
        step.returned.set_result(None)
        if not self.ordered:
            self.resume(step.resumed)

    def resume(self, over: asyncio.Future[None]) -> None:
        """End the wait of a coroutine."""
        if not over.done():
            self._moving += 1
            over.set_result(None)

    def in_loop(self, call: Callable[[Any], None], argument: Any) -> None:
        """Call something in the event loop: at once if this is its thread, else along with whatever else is resolved by then."""
        if threading.get_ident() == self._thread:
            call(argument)
            return
        self._resolved.append((call, argument))
        if not self._notified:
            self._notified = True
            # a loop that is closed has nobody who waits
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_resolved)

    def _take_resolved(self) -> None:
        # first, so that whatever is appended from now on is either seen below or announced again
        self._notified = False
        while self._resolved:
            call, argument = self._resolved.popleft()
            call(argument)

    async def _watch(self) -> None:
        """Give up environment steps that take too long."""
        assert self._env_timeout is not None
        while True:
            await asyncio.sleep(min(_WATCH_SECONDS, self._env_timeout / 4))
            latest = time.monotonic() - self._env_timeout
            slow = [
                step for step in self._watched.values() if step.started is not None and step.started < latest
            ]
            for step in slow:
                self._give_up(step)

    def _give_up(self, step: _EnvStep) -> None:
        assert self.env_executor is not None
        step.fault = EnvironmentFault(
            f"an environment step took longer than env_timeout={self._env_timeout:g} s; raise rollout.env_timeout, or find out "
            "what it waits for"
        )
        self.env_executor.abandon(step.future)
        self._returned(step)


def _completion(future: Future[Completion]) -> Completion:
    try:
        return future.result()
    except CancelledError as error:
        raise EngineError("the engine gave a request up before it was answered") from error
