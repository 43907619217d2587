"""A program while it runs: a coroutine that asks agents, is answered, and ends with rewards.

Place in the data flow: :class:`~drmas_pl.program.program_team.ProgramTeam` starts an :class:`Execution` for each episode. Programs run in
one event loop in a thread of their own, so that they may use whatever asyncio offers; the team waits until its program has nothing left to
do before agents have answered. Calls that are waiting then are answered at the same time.
"""

from __future__ import annotations

import asyncio
import random
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as WaitedTooLong
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from drmas_pl.errors import ContractError, EnvironmentFault
from drmas_pl.program.endpoint import Endpoint, open_client
from drmas_pl.types import Message, Task
from drmas_pl.utils.validation import check_returned, shown, to_number

Program = Callable[[Task, Any], Awaitable[Any]]
ROLES: Final = ("system", "user", "assistant")
# passes of the event loop without a further call after which a program waits for its agents: a few levels of gather and create_task
_QUIET_PASSES: Final = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent wrote, and whether it ended by itself (``stop``) or was cut off (``length``)."""

    text: str
    finish_reason: Literal["stop", "length"] = "stop"


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What a program may return instead of a reward.

    Attributes:
        reward: Reward of the whole team.
        rewards: What single agents are paid besides, by name.
        success: Whether the task counts as solved; None takes it for solved from a reward of 1 on.
        metrics: Numbers to be averaged over trajectories.
    """

    reward: float = 0.0
    rewards: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class ProgramAgent:
    """One agent, as a program sees it."""

    def __init__(self, name: str, calls: _Calls) -> None:
        self.name = name
        self._calls = calls

    async def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Let the agent answer a chat.

        Args:
            messages: Turns with ``role`` (``system``, ``user`` or ``assistant``) and ``content``, as in the OpenAI API.

        Returns:
            What it wrote, without think parts; all that came where the limit of tokens cut it off.
        """
        answer = await self._calls.ask(self.name, _read_messages(messages))
        return answer.text

    async def ask(self, text: str, *, system: str = "") -> str:
        """Let the agent answer a single text, with a system text before it if there is one."""
        turns = [{"role": "system", "content": system}] if system else []
        return await self.chat([*turns, {"role": "user", "content": text}])

    def reward(self, value: float) -> None:
        """Pay the agent alone; what it is paid adds up."""
        paid = to_number(f"the reward of {self.name!r}", value)
        self._calls.rewards[self.name] = self._calls.rewards.get(self.name, 0.0) + paid


class ProgramAgents(Mapping[str, ProgramAgent]):
    """The agents of a program by name; ``random`` is a generator that the seed of the episode decides."""

    def __init__(self, names: Sequence[str], calls: _Calls, seed: int) -> None:
        self.random = random.Random(seed)
        self._agents = {name: ProgramAgent(name, calls) for name in names}
        self._calls = calls

    async def openai(self) -> Any:
        """Return an ``openai.AsyncOpenAI`` that talks to the agents; ``model`` names one.

        Chat completions with ``messages`` and ``n`` are answered, everything else is refused by name.

        Raises:
            ConfigError: The openai library is missing.
        """
        return await open_client(Endpoint(tuple(self._agents), self._chat))

    async def _chat(self, name: str, messages: Any) -> Answer:
        return await self._calls.ask(name, _read_messages(messages))

    def __getitem__(self, name: str) -> ProgramAgent:
        if name not in self._agents:
            raise ContractError(f"the program asks for an agent {name!r}; it has {list(self._agents)}")
        return self._agents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)


class _Calls:
    """Calls that wait for an answer, by agent and in their order, and what agents were paid."""

    def __init__(self, names: Sequence[str]) -> None:
        self.waiting: dict[str, deque[tuple[tuple[Message, ...], asyncio.Future[Answer]]]] = {
            name: deque() for name in names
        }
        self.rewards: dict[str, float] = {}
        self.count = 0

    async def ask(self, name: str, messages: tuple[Message, ...]) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.waiting[name].append((messages, answer))
        self.count += 1
        return await answer

    def names(self) -> tuple[str, ...]:
        """Return who is asked now; calls that were given up are left out."""
        for calls in self.waiting.values():
            while calls and calls[0][1].done():
                calls.popleft()
        return tuple(name for name, calls in self.waiting.items() if calls)


class Execution:
    """One run of a program.

    A copy is made by running the program again with the same answers.

    Args:
        program: The coroutine function.
        task: What it plays.
        names: Its agents.
        seed: Seed of ``agents.random``.
        timeout: Seconds that it may take between two calls.

    Raises:
        EnvironmentFault: It takes longer.
    """

    def __init__(
        self, program: Program, task: Task, names: Sequence[str], *, seed: int, timeout: float
    ) -> None:
        self.program = program
        self.task = task
        self.names = tuple(names)
        self.seed = seed
        self.timeout = timeout
        self.answers: list[dict[str, Answer]] = []
        self._calls = _Calls(self.names)
        self._running: asyncio.Task[Any] | None = None
        self._do(self._start(ProgramAgents(self.names, self._calls, seed)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Execution:
        twin = Execution(self.program, self.task, self.names, seed=self.seed, timeout=self.timeout)
        memo[id(self)] = twin
        for answers in self.answers:
            twin.answer(answers)
        return twin

    @property
    def over(self) -> bool:
        """Whether the program has ended."""
        return self._running is not None and self._running.done()

    @property
    def asked(self) -> tuple[str, ...]:
        """Agents that are asked now, one call each, in the order of the names."""
        return () if self.over else self._calls.names()

    def messages(self, name: str) -> tuple[Message, ...]:
        """Return what an agent is asked now; nothing if it is not."""
        calls = self._calls.waiting[name]
        return calls[0][0] if calls else ()

    def answer(self, texts: Mapping[str, Answer]) -> None:
        """Answer the first waiting call of each of some agents, and let the program go on."""
        self.answers.append(dict(texts))
        self._do(self._answer(texts))

    def result(self) -> ProgramResult:
        """Return what the program ended with, rewards that it gave on the way included.

        Raises:
            ContractError: It returned something else than a reward.
            Exception: What it raised.
        """
        assert self._running is not None
        found = _as_result(self._running.result())
        rewards = dict(found.rewards)
        for name, paid in self._calls.rewards.items():
            rewards[name] = rewards.get(name, 0.0) + paid
        success = found.reward >= 1 if found.success is None else found.success
        return ProgramResult(found.reward, rewards, success, found.metrics)

    async def _start(self, agents: ProgramAgents) -> None:
        self._running = asyncio.create_task(_guarded(self.program, self.task, agents))
        # a program that nobody waits for any more must not stay behind
        weakref.finalize(self, _cancel, self._running).atexit = False
        await self._settle()

    async def _answer(self, texts: Mapping[str, Answer]) -> None:
        for name, text in texts.items():
            _, waiting = self._calls.waiting[name].popleft()
            waiting.set_result(text)
        await self._settle()

    async def _settle(self) -> None:
        """Wait until the program has ended, or nothing but answers of agents brings it on."""
        quiet = 0
        assert self._running is not None
        while not self._running.done() and quiet < _QUIET_PASSES:
            before = self._calls.count
            waits = bool(self._calls.names())
            # without a call it waits for something else, such as a file or a page
            await asyncio.sleep(0 if waits or quiet == 0 else 0.001)
            quiet = quiet + 1 if waits and before == self._calls.count else 0

    def _do(self, step: Any) -> None:
        future = asyncio.run_coroutine_threadsafe(step, _loop())
        try:
            future.result(self.timeout)
        except WaitedTooLong as error:
            future.cancel()
            if self._running is not None:
                _cancel(self._running)
            raise EnvironmentFault(
                f"the program neither asked an agent nor ended for {self.timeout} seconds"
            ) from error


async def _guarded(program: Program, task: Task, agents: ProgramAgents) -> Any:
    """Run a program; what would end the thread of all programs ends this one alone."""
    try:
        return await program(task, agents)
    except (SystemExit, KeyboardInterrupt) as error:
        raise EnvironmentFault(f"the program raised {type(error).__name__}") from error


def _cancel(running: asyncio.Task[Any]) -> None:
    loop = running.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(running.cancel)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop in which all programs of this process run."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="drmas-programs", daemon=True).start()
    return loop


def _text(content: Any) -> Any:
    """Return the text of a message whose content is given in parts; anything else as it is."""
    parts = content if isinstance(content, list) else []
    if parts and all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        return "".join(str(part.get("text", "")) for part in parts)
    return content


def _read_messages(messages: Any) -> tuple[Message, ...]:
    """Return a chat as messages whose author is the role."""
    check_returned("what chat is given", messages, (list, tuple), "a list of messages with role and content")
    found = []
    for message in messages:
        role = message.get("role") if isinstance(message, Mapping) else None
        content = _text(message.get("content")) if isinstance(message, Mapping) else None
        if role not in ROLES or not isinstance(content, str):
            raise ContractError(
                f"a message must have a role out of {', '.join(ROLES)} and a text as content, got {shown(message)}"
            )
        found.append(Message(role, "chat", content))
    if not found:
        raise ContractError("chat needs at least one message, got none")
    return tuple(found)


def _as_result(value: Any) -> ProgramResult:
    if isinstance(value, ProgramResult):
        return value
    if value is None:
        return ProgramResult()
    if isinstance(value, Mapping):
        return ProgramResult(rewards=value)
    return ProgramResult(to_number("what the program returns", value))
