"""A team that is written as one coroutine or function: who is asked what, in which order, and who is paid, is all the program's.

Place in the data flow: calls that wait at the same time are answered at the same time, so that engines, seeds, recordings and training are
those of any other team, and nothing that was sampled is tokenised again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import gymnasium

from drmas_pl.env import Outcome, StepResult
from drmas_pl.errors import ContractError
from drmas_pl.parsing import Parsed
from drmas_pl.program.calls import Answer
from drmas_pl.program.calls import Call as ProgramCall
from drmas_pl.program.chat_agent import ChatAgent, ChatObservation
from drmas_pl.program.execution import Execution, Setting
from drmas_pl.program.foreign import ForeignAgent
from drmas_pl.program.program_env import ProgramEnv
from drmas_pl.program.server import ProgramServer
from drmas_pl.team import Call, Move, Step, Team
from drmas_pl.types import Message, Observation, Turn

# flag of an utterance that was cut off
_CUT: Final = "cut"


class ProgramTeam(Team):
    """Runs a program as a team.

    Calls that wait at the same time, as with ``asyncio.gather``, are generated concurrently, also several of one agent. Whatever an agent
    says is handed to the program, which decides what it is worth.

    Args:
        env: The environment of a program.
        names: The agents that the program may ask, at least one.
        timeout: Seconds that the program may take between two calls; then its trajectory fails.
        foreign: Teammates that are no agents of the run, by name: models behind an address, or functions.
        default_agent: Who answers for names that nobody has; None refuses them.
        server: Where programs in other processes find their agents; None listens at this machine alone.

    Raises:
        ValueError: There is no program, it is no function of at least two arguments, or names are missing, unknown or come twice.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        names: Sequence[str],
        timeout: float = 60.0,
        foreign: Mapping[str, ForeignAgent] | None = None,
        default_agent: str | None = None,
        server: ProgramServer | None = None,
    ) -> None:
        super().__init__(env)
        if not isinstance(self.unwrapped, ProgramEnv):
            raise ValueError(
                f"the team needs the environment of a program, got {type(self.unwrapped).__name__}; choose env=program"
            )
        everybody = [*names, *(foreign or ())]
        if not names or len(set(everybody)) != len(everybody):
            raise ValueError(
                f"names must be different names, at least one, and none of foreign, got {everybody}"
            )
        if default_agent is not None and default_agent not in everybody:
            raise ValueError(f"default_agent must be one of {everybody}, got {default_agent!r}")
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        # who speaks is the program's to say, not a class's
        self.possible_agents = tuple(names)  # type: ignore[misc]
        self.grammars = dict.fromkeys(names, ChatAgent.grammar)  # type: ignore[misc]
        self.setting = Setting(
            self.possible_agents, timeout, dict(foreign or {}), default_agent, server or ProgramServer()
        )
        self.execution: Execution | None = None

    def use_agents(self, agents: Mapping[str, Any]) -> None:
        """Learn how agents sample and how their tokens are read, which requests may ask for."""
        self.setting.agents.update(agents)

    def begin(self) -> tuple[Step, ...]:
        """Start the program and let it go on to its first calls.

        Raises:
            ContractError: It ends without a call.
        """
        env = self._program
        assert env.task is not None
        seed = int(env.np_random.integers(1 << 31))
        self.execution = Execution(env.program, env.task, self.setting, seed=seed)
        if self.execution.over:
            self.execution.result()
            raise ContractError(
                "the program ended without having asked an agent; write answer = await agents['name'].chat(messages)"
            )
        return self._asked()

    def calls(self) -> tuple[Call, ...]:
        """Return every call that waits for its answer."""
        if not self.agents_selection:
            return ()
        return tuple(
            Call(call.agent, _observation(call), request.stop, request.max_tokens, call.seed_key)
            for call in self._execution.asked
            for request in (call.request,)
        )

    def hear(self, turns: Sequence[Turn]) -> Outcome:
        """Answer every call that waits."""
        answers = [
            (call, Answer(turn.parsed.action, "length" if turn.finish_reason == "length" else "stop", turn))
            for call, turn in zip(self._execution.asked, turns)
        ]
        self._queue.clear()
        self._told = {}
        return self._apply(self._answer(answers), tuple(turn.agent for turn in turns))

    def interpret(self, agent: str, parsed: Parsed) -> Parsed:
        """Hand over whatever was said."""
        flags = frozenset({_CUT}) if parsed.status == "truncated" else frozenset()
        return Parsed("valid", action=parsed.action, flags=flags)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Answer the first call of the only agent that is asked."""
        return self.play_jointly({agent: parsed})

    def play_jointly(self, utterances: Mapping[str, Parsed]) -> Move:
        """Answer the first call of each agent that is asked, and end the episode if the program ends."""
        return self._answer(
            [
                (self._first(agent), Answer(said.action, "length" if _CUT in said.flags else "stop"))
                for agent, said in utterances.items()
            ]
        )

    def observe(self, agent: str) -> Observation:
        """Return what the agent is asked first of all that it is asked now."""
        if agent not in self.possible_agents:
            return super().observe(agent)
        call = next((call for call in self._execution.asked if call.agent == agent), None)
        return ChatObservation("") if call is None else _observation(call)

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Return what the agent is asked now."""
        return self.observe(agent).history

    def _answer(self, answers: Sequence[tuple[ProgramCall, Answer]]) -> Move:
        """Let the program go on, and end the episode if it ends."""
        execution = self._execution
        execution.answer(answers)
        if not execution.over:
            return Move(self._asked())
        found = execution.result()
        self._program.outcome = StepResult(
            "",
            found.reward,
            terminated=True,
            success=bool(found.success),
            metrics=found.metrics,
            rewards=found.rewards,
        )
        return Move(action="end")

    def _first(self, agent: str) -> ProgramCall:
        return next(call for call in self._execution.asked if call.agent == agent)

    def _asked(self) -> tuple[Step, ...]:
        return (frozenset(call.agent for call in self._execution.asked),)

    @property
    def _execution(self) -> Execution:
        assert self.execution is not None
        return self.execution

    @property
    def _program(self) -> ProgramEnv:
        return cast(ProgramEnv, cast(Any, self.unwrapped))


def _observation(call: ProgramCall) -> ChatObservation:
    return ChatObservation("", call.request.messages, tools=call.request.tools)
