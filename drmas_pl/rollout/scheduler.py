"""Lets trajectories wait for completions and environment steps, each for its own, and advances the engines that need it.

A trajectory goes on the moment that what it waits for is there. Engines that work by themselves resolve their futures from threads of their
own. Engines that compute in this process are stepped when no trajectory can go on, all of them at a time, so that what they compute
together depends on the game alone. Environment steps that run in threads would bring the wall clock into that. A trajectory therefore goes
on a fixed number of engine steps after its environment step began, or at once when there is nothing else to do::

    engine steps       s      s+1     s+2     s+3     s+4
    environment        begins ─────────── done
    trajectory         waits ──────────────────────── goes on

With an engine that works by itself there is nothing to keep equal, and nobody waits for anybody.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from drmas_pl.engines.base import Engine
from drmas_pl.engines.limits import remaining_tokens
from drmas_pl.errors import EngineError, EnvironmentFault
from drmas_pl.rollout.env_threads import EnvExecutor
from drmas_pl.types import Completion, GenerationRequest

Result = TypeVar("Result")
# longest time between two looks for environment steps that take too long
_WATCH_SECONDS = 1.0


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
        self._stepped = [engine for engine in distinct if engine.needs_steps]
        # whether equal runs must see equal batches
        self._ordered = len(self._stepped) == len(distinct)
        self._env_executor = env_executor
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
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._moving = len(coroutines)
        tasks = [asyncio.create_task(self._count_down(coroutine)) for coroutine in coroutines]
        everything = asyncio.gather(*tasks)
        # after Ctrl-C nobody asks for the result any more, which asyncio would report as an error that was forgotten
        everything.add_done_callback(lambda future: future.cancelled() or future.exception())
        watch = asyncio.create_task(self._watch()) if self._env_timeout is not None else None
        try:
            if self._stepped:
                await self._drive(everything)
            await everything
        finally:
            others = [*tasks, *([] if watch is None else [watch])]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            # those that were ended before they began would be reported as forgotten
            for coroutine in coroutines:
                coroutine.close()

    async def complete(self, calls: Sequence[tuple[Engine, GenerationRequest]]) -> list[Completion]:
        """Generate for requests that belong together, and wait until all of them are answered.

        Raises:
            EngineError: A prompt leaves no room for a token, or an engine failed; requests that are still under way are given up.
        """
        for engine, request in calls:
            # refused here, an overlong prompt fails its own trajectory only
            remaining_tokens(request, engine.context_length)
        futures: list[Future[Completion]] = []
        answers = _Answers(self, len(calls), self._loop.create_future())
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
        assert self._env_executor is not None
        step = _EnvStep(call, self._engine_steps + self._env_latency, self._loop)
        if self._ordered:
            self._env_steps.append(step)
        step.future = self._env_executor.submit(step.run)
        if self._env_timeout is not None:
            self._watched[id(step)] = step
        step.future.add_done_callback(lambda _: self.in_loop(self._returned, step))
        self._pause()
        await step.resumed
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

    async def _drive(self, everything: asyncio.Future[Any]) -> None:
        """Whenever no trajectory can go on, let those go on whose environment step is due, or else step the engines."""
        everything.add_done_callback(lambda _: self._wake_driver())
        while not everything.done():
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

    async def _all_wait(self) -> None:
        self._quiet = self._loop.create_future()
        await self._quiet
        self._quiet = None

    def _wake_driver(self) -> None:
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
        if not self._ordered:
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
        assert self._env_executor is not None
        step.fault = EnvironmentFault(
            f"an environment step took longer than env_timeout={self._env_timeout:g} s; raise rollout.env_timeout, or find out "
            "what it waits for"
        )
        self._env_executor.abandon(step.future)
        self._returned(step)


def _completion(future: Future[Completion]) -> Completion:
    try:
        return future.result()
    except CancelledError as error:
        raise EngineError("the engine gave a request up before it was answered") from error
