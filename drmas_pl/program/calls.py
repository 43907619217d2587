"""Calls of a program that wait for an answer, in whatever thread, event loop or process it makes them."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

from drmas_pl.errors import ContractError
from drmas_pl.program.chat_request import ChatRequest, RequestRefused
from drmas_pl.program.foreign import ForeignAgent
from drmas_pl.types import Turn

T = TypeVar("T")
_STARTING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent wrote, and whether it ended by itself (``stop``) or was cut off (``length``); its turn where there is one."""

    text: str
    finish_reason: Literal["stop", "length"] = "stop"
    turn: Turn | None = None


@dataclass(slots=True, eq=False)
class Call:
    """One answer that a program waits for.

    Attributes:
        agent: Who is asked.
        request: What.
        seed_key: What the seed of the sample is derived from.
        future: Resolved with the answer.
    """

    agent: str
    request: ChatRequest
    seed_key: tuple[int | str, ...]
    future: asyncio.Future[Answer] = field(repr=False)


class Calls:
    """The calls of one program; all of it happens in the programs' event loop, whoever calls.

    Seeds do not depend on time. Calls of the program's own coroutine or thread come one after the other and are counted, so that a program
    which does what a team does samples what the team samples. Any other call, such as one of a task beside, has a seed of what it asks and
    how often that was asked before.

    Args:
        names: The agents.
        foreign: Teammates that are no agents of the run, by name.
        default_agent: Who answers for names that nobody has; None refuses them.
    """

    def __init__(
        self, names: Sequence[str], foreign: Mapping[str, ForeignAgent], default_agent: str | None
    ) -> None:
        self.known = tuple(names)
        self.foreign = foreign
        self.default_agent = default_agent
        self.waiting: list[Call] = []
        self.rewards: dict[str, float] = {}
        self.count = 0
        self.given_up: list[str] = []
        self.changed = asyncio.Event()
        self.closed = False
        # the program's own task and thread
        self.task: asyncio.Task[Any] | None = None
        self.thread: int | None = None
        self._in_order = 0
        self._asked: Counter[tuple[str, str]] = Counter()
        self._made: list[tuple[str, Coroutine[Any, Any, Any]]] = []

    def named(self, name: Any) -> str:
        """Return the agent that a program means.

        Raises:
            RequestRefused: There is none of that name.
        """
        if name in self.known or name in self.foreign:
            return str(name)
        if self.default_agent is None:
            everybody = [*self.known, *self.foreign]
            raise RequestRefused(
                404,
                f"the program asks for an agent {name!r}; it has {everybody}; name one of them, or set agents.default_agent",
            )
        return self.default_agent

    def is_in_order(self) -> bool:
        """Tell whether the program's own coroutine or thread is what runs now."""
        if self.thread is not None:
            return threading.get_ident() == self.thread
        return in_programs_loop() and asyncio.current_task() is self.task

    async def ask(self, name: str, request: ChatRequest, *, in_order: bool = False) -> list[Answer]:
        """Return the answers to a request, in the order of their seeds."""
        if asyncio.get_running_loop() is not loop():
            return await asyncio.wrap_future(in_loop(self.ask(name, request, in_order=in_order)))
        if self.closed:
            raise ContractError("the program has ended, so that nobody answers it any more")
        if name in self.foreign:
            return await asyncio.gather(*(self._ask_foreign(name, request) for _ in range(request.count)))
        calls = [self._add(name, request, in_order=in_order) for _ in range(request.count)]
        return await asyncio.gather(*(call.future for call in calls))

    async def _ask_foreign(self, name: str, request: ChatRequest) -> Answer:
        key = (name, request.digest)
        self._asked[key] += 1
        text = await self.foreign[name].answer(request, self._asked[key])
        return Answer(text)

    def _add(self, name: str, request: ChatRequest, *, in_order: bool) -> Call:
        seed_key: tuple[int | str, ...] = (name, request.digest, self._asked[name, request.digest])
        if in_order and request.seed is None:
            seed_key = (name, self._in_order)
            self._in_order += 1
        else:
            self._asked[name, request.digest] += 1
        call = Call(name, request, seed_key, asyncio.get_running_loop().create_future())
        self.waiting.append(call)
        self.count += 1
        self.changed.set()
        return call

    def asked(self) -> list[Call]:
        """Return the calls that wait; those that were given up are left out, and remembered."""
        self.given_up += [call.agent for call in self.waiting if call.future.cancelled()]
        self.waiting = [call for call in self.waiting if not call.future.done()]
        return list(self.waiting)

    def answer(self, call: Call, answer: Answer) -> None:
        """Answer a call, unless it was given up meanwhile."""
        self.waiting.remove(call)
        if not call.future.done():
            call.future.set_result(answer)

    def track(self, name: str, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Remember a coroutine that a program has to await."""
        self._made.append((name, call))
        return call

    def close(self) -> str:
        """Let nobody wait any more, and return what the program has left undone; empty for nothing."""
        self.closed = True
        waiting = [call.agent for call in self.asked()]
        for call in self.waiting:
            call.future.cancel()
        self.waiting = []
        forgotten = [
            name for name, made in self._made if inspect.getcoroutinestate(made) == inspect.CORO_CREATED
        ]
        for _, made in self._made:
            if inspect.getcoroutinestate(made) == inspect.CORO_CREATED:
                made.close()
        self._made = []
        if forgotten:
            return f"calls of {forgotten} were made and never awaited; write await before each"
        if waiting:
            return f"the program ended while calls of {waiting} waited for their answers; await each of them"
        if self.given_up:
            return f"calls of {self.given_up} were given up before they were answered; a program must wait for its agents"
        return ""


def in_loop(call: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine in the programs' event loop, from another thread."""
    return asyncio.run_coroutine_threadsafe(call, loop())


def loop() -> asyncio.AbstractEventLoop:
    """Return the event loop in which all programs of this process run."""
    # threads that ask at the same time must get the same one
    with _STARTING:
        return _start_loop()


@cache
def _start_loop() -> asyncio.AbstractEventLoop:
    found = asyncio.new_event_loop()
    threading.Thread(target=found.run_forever, name="drmas-programs", daemon=True).start()
    return found


def in_programs_loop() -> bool:
    """Tell whether this thread runs the programs' event loop now."""
    try:
        return asyncio.get_running_loop() is loop()
    except RuntimeError:
        return False
