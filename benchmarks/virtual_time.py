"""An event loop whose clock jumps, and a server that decodes in it: hours of a rollout take seconds, and two runs take equally long."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from drmas_pl.engines.base import Engine
from drmas_pl.types import Completion, GenerationRequest

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: the time that it should wait passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is left that could happen; somebody waits for ever")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its time passes when nothing is left to do before the next call that is due."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._clock.now

    def compute(self, seconds: float) -> None:
        """Let time pass in which this thread is busy."""
        self._clock.now += seconds


def run_virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, float]:
    """Run a coroutine in virtual time and return its result and how many virtual seconds it took."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        found = runner.run(main())
        return found, runner.get_loop().time()


@dataclass(frozen=True, slots=True)
class Server:
    """What a server can do.

    Attributes:
        capacity: Sequences that it decodes at once.
        step: Seconds of a decode step.
        per_sequence: Seconds that each sequence adds to it.
    """

    capacity: int = 256
    step: float = 0.010
    per_sequence: float = 0.00004

    def step_seconds(self, sequences: int) -> float:
        """Return how long a step of so many sequences takes.

        >>> Server(step=0.5, per_sequence=0.25).step_seconds(2)
        1.0
        """
        return self.step + self.per_sequence * sequences


class VirtualEngine(Engine):
    """Decodes token by token with continuous batching, in the event loop that runs; first come, first served.

    Args:
        server: What it can do.
        length: Gives the number of tokens of a response.
    """

    def __init__(self, server: Server, length: Callable[[GenerationRequest], int]) -> None:
        self.server = server
        self.length = length
        self.busy_seconds = 0.0
        self._waiting: deque[tuple[Future[Completion], int]] = deque()
        self._running: list[tuple[int, int, Future[Completion], int]] = []
        self._admitted = 0
        self._steps = 0
        self._stepping = False
        self._completions: dict[int, Completion] = {}

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Let a request wait for its place."""
        future: Future[Completion] = Future()
        self._waiting.append((future, self.length(request)))
        if not self._stepping:
            self._stepping = True
            # later, so that what is asked at the same moment shares the step
            asyncio.get_running_loop().call_soon(self._begin)
        return future

    @property
    def idle(self) -> bool:
        """Work goes on by itself."""
        return True

    def _begin(self) -> None:
        seconds = self._admit()
        self._stepping = seconds > 0
        if self._stepping:
            asyncio.get_running_loop().call_later(seconds, self._end)

    def _admit(self) -> float:
        """Give places to those who wait, and return the seconds that the next step takes; 0 if there is nothing to do."""
        while self._waiting and len(self._running) < self.server.capacity:
            future, length = self._waiting.popleft()
            self._admitted += 1
            heapq.heappush(self._running, (self._steps + length, self._admitted, future, length))
        seconds = self.server.step_seconds(len(self._running)) if self._running else 0.0
        self.busy_seconds += seconds
        return seconds

    def _release(self) -> None:
        """End a step: answer what is done."""
        self._steps += 1
        while self._running and self._running[0][0] <= self._steps:
            _, _, future, length = heapq.heappop(self._running)
            if future.set_running_or_notify_cancel():
                future.set_result(self._completion(length))

    def _end(self) -> None:
        self._release()
        # after those who go on now, so that their next request is part of the next step
        asyncio.get_running_loop().call_soon(self._begin)

    def _completion(self, length: int) -> Completion:
        if length not in self._completions:
            self._completions[length] = Completion((1,) * length, (0.0,) * length, "stop", 0)
        return self._completions[length]


class VirtualSteppedEngine(VirtualEngine):
    """Does the same in the thread of the event loop, step by step, as an engine of this process does."""

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Let a request wait for its place."""
        future: Future[Completion] = Future()
        self._waiting.append((future, self.length(request)))
        return future

    @property
    def idle(self) -> bool:
        """Whether nothing waits or is decoded."""
        return not (self._waiting or self._running)

    def begin_step(self) -> Callable[[], None]:
        """Return what decodes one token of every sequence."""
        return self._step

    def _step(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        seconds = self._admit()
        if seconds > 0:
            loop.compute(seconds)
            self._release()


class VirtualEnvExecutor:
    """Runs environment steps that take as many virtual seconds as the environment says, all at the same time.

    Args:
        seconds: Returns what the environment's last step takes.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Make the step now, and return what it gives later."""
        future: Future[Any] = Future()
        try:
            found = call()
        except Exception as error:
            future.set_exception(error)
            return future
        asyncio.get_running_loop().call_later(self.seconds(), future.set_result, found)
        return future

    def abandon(self, future: Future[Any]) -> None:
        """Do nothing: there is always room."""

    def shutdown(self) -> None:
        """Do nothing: there are no threads."""


@dataclass(frozen=True, slots=True)
class Call:
    """One LLM call: which server, how many tokens, and the seconds before the trajectory can go on."""

    server: int
    tokens: int
    pause: float = 0.0


class _IdealServer:
    """A server of the ideal scheduler, which knows of no event loop; ``end`` is when its step is over."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.end: float | None = None
        self.waiting: deque[tuple[int, int, int]] = deque()
        self._running: list[tuple[int, int, int]] = []
        self._steps = 0

    def begin_step(self, now: float) -> None:
        """Admit (trajectory, place, tokens) that wait, and begin a step if none is under way."""
        if self.end is not None:
            return
        while self.waiting and len(self._running) < self.server.capacity:
            trajectory, place, tokens = self.waiting.popleft()
            heapq.heappush(self._running, (self._steps + tokens, trajectory, place))
        if self._running:
            self.end = now + self.server.step_seconds(len(self._running))

    def end_step(self, now: float) -> list[tuple[int, int]]:
        """End the step that is over now, and return (trajectory, place) of what is done."""
        if self.end is None or self.end > now:
            return []
        self.end = None
        self._steps += 1
        done = []
        while self._running and self._running[0][0] <= self._steps:
            done.append(heapq.heappop(self._running)[1:])
        return done


def free_running_seconds(trajectories: Sequence[Sequence[Call]], servers: Sequence[Server]) -> float:
    """Return how long an ideal scheduler takes: every call is asked for the moment the one before is done.

    >>> free_running_seconds([[Call(0, 2), Call(0, 1)], [Call(0, 1)]], [Server(1, 1.0, 0.0)])
    4.0
    """
    now = 0.0
    ideal = [_IdealServer(server) for server in servers]
    # when which trajectory goes on with which call; the second number keeps the order of arrival
    ready = [(0.0, number, number, 0) for number in range(len(trajectories))]
    numbers = itertools.count(len(ready))
    while True:
        while ready and ready[0][0] <= now:
            _, _, trajectory, place = heapq.heappop(ready)
            if place < len(trajectories[trajectory]):
                call = trajectories[trajectory][place]
                ideal[call.server].waiting.append((trajectory, place, call.tokens))
        for server in ideal:
            server.begin_step(now)
        upcoming = [server.end for server in ideal if server.end is not None] + [at for at, *_ in ready[:1]]
        if not upcoming:
            return now
        now = min(upcoming)
        for server in ideal:
            for trajectory, place in server.end_step(now):
                pause = trajectories[trajectory][place].pause
                heapq.heappush(ready, (now + pause, next(numbers), trajectory, place + 1))


def lock_step_seconds(trajectories: Sequence[Sequence[Call]], servers: Sequence[Server]) -> float:
    """Return how long it takes if every round waits for its slowest call, on whichever server, and for its slowest pause.

    >>> lock_step_seconds([[Call(0, 2), Call(0, 1)], [Call(0, 1), Call(0, 3)]], [Server(2, 1.0, 0.0)])
    5.0
    """
    seconds = 0.0
    for place in range(max(map(len, trajectories), default=0)):
        round_calls = [calls[place] for calls in trajectories if place < len(calls)]
        seconds += max(
            free_running_seconds(
                [[Call(0, call.tokens)] for call in round_calls if call.server == at], [server]
            )
            for at, server in enumerate(servers)
        )
        seconds += max(call.pause for call in round_calls)
    return seconds
