"""A program while it runs: a coroutine or a function that asks agents, is answered, and ends with rewards.

Place in the data flow: :class:`~drmas_pl.program.program_team.ProgramTeam` starts an :class:`Execution` for each episode. Coroutines run in
one event loop in a thread of their own, so that they may use whatever asyncio offers, and functions in a thread each; the team waits until
its program has nothing left to do before agents have answered. Calls that are waiting then are answered at the same time.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as WaitedTooLong
from dataclasses import dataclass, field
from typing import Any, Final

from drmas_pl.errors import ContractError, EnvironmentFault
from drmas_pl.program.calls import Answer, Call, Calls, in_loop, in_programs_loop
from drmas_pl.program.chat_request import ChatRequest, read_messages
from drmas_pl.program.clients import open_blocking_client, open_client
from drmas_pl.program.endpoint import Endpoint
from drmas_pl.program.foreign import ForeignAgent
from drmas_pl.program.server import Address, ProgramServer
from drmas_pl.types import Task
from drmas_pl.utils.validation import check_returned, to_number

Program = Callable[..., Any]
# passes of the event loop without a further call after which a program waits for its agents: a few levels of gather and create_task
_QUIET_PASSES: Final = 16


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
    """One agent, as a program sees it. A function, which runs in a thread, calls it without ``await``."""

    def __init__(self, name: str, calls: Calls) -> None:
        self.name = name
        self._calls = calls

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> Any:
        """Let the agent answer a chat.

        Args:
            messages: Turns with ``role`` (``system``, ``user`` or ``assistant``) and ``content``, as in the OpenAI API.

        Returns:
            What it wrote, without think parts; all that came where the limit of tokens cut it off.
        """
        kinds = (list, tuple)
        check_returned("what chat is given", messages, kinds, "a list of messages with role and content")
        request = ChatRequest(read_messages(messages))
        if self._calls.thread is None or in_programs_loop():
            return self._calls.track(self.name, self._ask(request))
        return in_loop(self._ask(request, in_order=self._calls.is_in_order())).result()

    def ask(self, text: str, *, system: str = "") -> Any:
        """Let the agent answer a single text, with a system text before it if there is one."""
        turns = [{"role": "system", "content": system}] if system else []
        return self.chat([*turns, {"role": "user", "content": text}])

    def reward(self, value: float) -> None:
        """Pay the agent alone; what it is paid adds up."""
        paid = to_number(f"the reward of {self.name!r}", value)
        self._calls.rewards[self.name] = self._calls.rewards.get(self.name, 0.0) + paid

    async def _ask(self, request: ChatRequest, *, in_order: bool | None = None) -> str:
        known = self._calls.is_in_order() if in_order is None else in_order
        (answer,) = await self._calls.ask(self.name, request, in_order=known)
        return answer.text


class ProgramAgents(Mapping[str, ProgramAgent]):
    """The agents of a program by name; ``random`` is a generator that the seed of the episode decides."""

    def __init__(self, calls: Calls, endpoint: Endpoint, seed: int) -> None:
        self.random = random.Random(seed)
        self._agents = {name: ProgramAgent(name, calls) for name in (*calls.known, *calls.foreign)}
        self._calls = calls
        self._endpoint = endpoint

    async def openai(self) -> Any:
        """Return an ``openai.AsyncOpenAI`` that talks to the agents; ``model`` names one.

        Raises:
            ConfigError: The openai library is missing.
        """
        return await open_client(self._endpoint, self._calls.track)

    def blocking_openai(self) -> Any:
        """Return an ``openai.OpenAI`` that talks to the agents, for a function, which runs in a thread.

        Raises:
            ConfigError: The openai library is missing.
        """
        return open_blocking_client(self._endpoint, self._calls.is_in_order)

    def __getitem__(self, name: str) -> ProgramAgent:
        return self._agents[self._calls.named(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)


@dataclass(frozen=True, slots=True)
class Setting:
    """What every run of a program has; shared by copies.

    Attributes:
        names: Its agents.
        timeout: Seconds that it may take between two calls.
        foreign: Teammates that are no agents of the run.
        default_agent: Who answers for names that nobody has.
        server: Where its agents are found from outside of the process.
        agents: The agents themselves by name, once they are known.
    """

    names: tuple[str, ...]
    timeout: float = 60.0
    foreign: Mapping[str, ForeignAgent] = field(default_factory=dict)
    default_agent: str | None = None
    server: ProgramServer = field(default_factory=ProgramServer)
    agents: dict[str, Any] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Setting:
        return self


class Execution:
    """One run of a program.

    A copy is made by running the program again with the same answers.

    Args:
        program: A coroutine function or a function. The names of its parameters say what it is given besides the task: ``agents``,
            ``client`` or ``address``.
        task: What it plays.
        setting: What every run has.
        seed: Seed of ``agents.random``.

    Raises:
        EnvironmentFault: It takes longer than the setting allows.
    """

    def __init__(self, program: Program, task: Task, setting: Setting, *, seed: int) -> None:
        self.program = program
        self.task = task
        self.setting = setting
        self.seed = seed
        # the calls that wait for answers now
        self.asked: tuple[Call, ...] = ()
        self._answers: list[list[tuple[tuple[int | str, ...], Answer]]] = []
        self._running: asyncio.Task[Any] | None = None
        self._do(self._start())

    def __deepcopy__(self, memo: dict[int, Any]) -> Execution:
        twin = Execution(self.program, self.task, self.setting, seed=self.seed)
        memo[id(self)] = twin
        for answers in self._answers:
            by_key = {call.seed_key: call for call in twin.asked}
            twin.answer([(by_key[key], answer) for key, answer in answers])
        return twin

    @property
    def over(self) -> bool:
        """Whether the program has ended."""
        return self._running is not None and self._running.done()

    def answer(self, answers: Sequence[tuple[Call, Answer]]) -> None:
        """Answer calls that wait, and let the program go on."""
        self._answers.append([(call.seed_key, answer) for call, answer in answers])
        self._do(self._answer(answers))

    def result(self) -> ProgramResult:
        """Return what the program ended with, rewards that it gave on the way included.

        Raises:
            ContractError: It returned something else than a reward, or left calls that it made unanswered.
            Exception: What it raised.
        """
        assert self._running is not None
        found = _as_result(self._running.result())
        if self._left:
            raise ContractError(self._left)
        rewards = dict(found.rewards)
        for name, paid in self._calls.rewards.items():
            rewards[name] = rewards.get(name, 0.0) + paid
        success = found.reward >= 1 if found.success is None else found.success
        return ProgramResult(found.reward, rewards, success, found.metrics)

    async def _start(self) -> None:
        setting = self.setting
        self._left = ""
        self._calls = Calls(setting.names, setting.foreign, setting.default_agent)
        run = _Run(self.program, self.task, self._calls, setting, self.seed)
        self._running = self._calls.task = asyncio.create_task(run())
        changed = self._calls.changed
        self._running.add_done_callback(lambda _: changed.set())
        # a program that nobody waits for any more must not stay behind
        weakref.finalize(self, _end, self._running, self._calls).atexit = False
        await self._settle()

    async def _answer(self, answers: Sequence[tuple[Call, Answer]]) -> None:
        for call, answer in answers:
            self._calls.answer(call, answer)
        await self._settle()

    async def _settle(self) -> None:
        """Wait until the program has ended, or nothing but answers of agents brings it on."""
        quiet = 0
        assert self._running is not None
        while not self._running.done() and quiet < _QUIET_PASSES:
            before = self._calls.count
            if self._calls.asked():
                await asyncio.sleep(0)
                quiet = quiet + 1 if before == self._calls.count else 0
            else:
                # it waits for something else, such as a file, a thread or another process
                self._calls.changed.clear()
                await self._calls.changed.wait()
        self.asked = () if self._running.done() else tuple(self._calls.asked())
        if self._running.done():
            self._left = self._calls.close()

    def _do(self, step: Any) -> None:
        future = in_loop(step)
        try:
            future.result(self.setting.timeout)
        except WaitedTooLong as error:
            future.cancel()
            if self._running is not None:
                _end(self._running, self._calls)
            raise EnvironmentFault(
                f"the program neither asked an agent nor ended for {self.setting.timeout} seconds"
            ) from error


class _Run:
    """Calls a program with what its parameters ask for."""

    def __init__(self, program: Program, task: Task, calls: Calls, setting: Setting, seed: int) -> None:
        self.program = program
        self.task = task
        self.calls = calls
        self.setting = setting
        self.endpoint = Endpoint(calls, setting.agents)
        self.agents = ProgramAgents(calls, self.endpoint, seed)
        self.wanted = wanted(program)

    async def __call__(self) -> Any:
        """Run the program; what would end the thread of all programs ends this one alone."""
        address: Address | None = None
        try:
            if "address" in self.wanted:
                address = await self.setting.server.open(self.endpoint)
            if not inspect.iscoroutinefunction(self.program):
                return await self.in_thread(address)
            client = await self.agents.openai() if "client" in self.wanted else None
            named = {"address": address, "client": client}
            return await self.program(self.task, *(named.get(name, self.agents) for name in self.wanted))
        except (SystemExit, KeyboardInterrupt) as error:
            raise EnvironmentFault(f"the program raised {type(error).__name__}") from error
        finally:
            if address is not None:
                await self.setting.server.close(address)

    async def in_thread(self, address: Address | None) -> Any:
        """Run a function in a thread of its own: those of a pool would all wait for agents at some time."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        loop = future.get_loop()
        client = self.agents.blocking_openai() if "client" in self.wanted else None
        named = {"address": address, "client": client}
        given = [named.get(name, self.agents) for name in self.wanted]

        def settle(resolve: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                resolve(value)

        def work() -> None:
            self.calls.thread = threading.get_ident()
            try:
                value = self.program(self.task, *given)
            except BaseException as error:  # whatever it is, the trajectory must learn of it
                loop.call_soon_threadsafe(settle, future.set_exception, _passable(error))
            else:
                loop.call_soon_threadsafe(settle, future.set_result, value)

        threading.Thread(target=work, name="program", daemon=True).start()
        return await future


def wanted(program: Program) -> tuple[str, ...]:
    """Return what a program wants besides its task, by the names of its parameters; any name but ``client`` and ``address`` is agents.

    >>> async def run(task, client): ...
    >>> wanted(run)
    ('client',)
    """
    names = [
        name
        for name, parameter in inspect.signature(program).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and (parameter.default is parameter.empty or name in ("client", "address", "agents"))
    ]
    return tuple(name if name in ("client", "address") else "agents" for name in names[1:])


def _passable(error: BaseException) -> BaseException:
    """Return an error that a future and an event loop pass on."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    fault = EnvironmentFault(f"the program raised {type(error).__name__}")
    fault.__cause__ = error
    return fault


def _end(running: asyncio.Task[Any], calls: Calls) -> None:
    """End a program that nobody waits for any more."""

    def end() -> None:
        calls.close()
        running.cancel()

    loop = running.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(end)


def _as_result(value: Any) -> ProgramResult:
    if isinstance(value, ProgramResult):
        return value
    if value is None:
        return ProgramResult()
    if isinstance(value, Mapping):
        return ProgramResult(rewards=value)
    return ProgramResult(to_number("what the program returns", value))
