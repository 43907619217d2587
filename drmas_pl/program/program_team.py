"""A team that is written as one coroutine: who is asked what, in which order, and who is paid, is all the program's.

Place in the data flow: calls that wait at the same time are the agents that move now, so that engines, seeds, recordings and training are
those of any other team, and nothing that was sampled is tokenised again.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import gymnasium

from drmas_pl.env import StepResult
from drmas_pl.errors import ContractError
from drmas_pl.parsing import Parsed
from drmas_pl.program.chat_agent import ChatAgent
from drmas_pl.program.execution import Answer, Execution
from drmas_pl.program.program_env import ProgramEnv
from drmas_pl.team import Move, Step, Team
from drmas_pl.types import Message
from drmas_pl.utils.validation import shown

# flag of an utterance that was cut off
_CUT: Final = "cut"


class ProgramTeam(Team):
    """Runs a program as a team.

    Calls of different agents that wait at the same time, as with ``asyncio.gather``, are generated concurrently; of one agent one after the
    other. Whatever an agent says is handed to the program, which decides what it is worth.

    Args:
        env: The environment of a program.
        names: The agents that the program may ask, at least one.
        timeout: Seconds that the program may take between two calls; then its trajectory fails.

    Raises:
        ValueError: There is no program, it is no coroutine function, or names are missing or come twice.
    """

    def __init__(self, env: gymnasium.Env[str, str], *, names: Sequence[str], timeout: float = 60.0) -> None:
        super().__init__(env)
        if not isinstance(self.unwrapped, ProgramEnv):
            raise ValueError(
                f"the team needs the environment of a program, got {type(self.unwrapped).__name__}; choose env=program"
            )
        if not inspect.iscoroutinefunction(self._program.program):
            raise ValueError(
                f"a program must be a coroutine function, async def run(task, agents), got {shown(self._program.program)}"
            )
        if not names or len(set(names)) != len(names):
            raise ValueError(f"names must be different names, at least one, got {list(names)}")
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        # who speaks is the program's to say, not a class's
        self.possible_agents = tuple(names)  # type: ignore[misc]
        self.grammars = dict.fromkeys(names, ChatAgent.grammar)  # type: ignore[misc]
        self.timeout = timeout
        self.execution: Execution | None = None

    def begin(self) -> tuple[Step, ...]:
        """Start the program and let it go on to its first calls.

        Raises:
            ContractError: It ends without a call.
        """
        env = self._program
        assert env.task is not None
        seed = int(env.np_random.integers(1 << 31))
        self.execution = Execution(
            env.program, env.task, self.possible_agents, seed=seed, timeout=self.timeout
        )
        if self.execution.over:
            self.execution.result()
            raise ContractError(
                "the program ended without having asked an agent; write answer = await agents['name'].chat(messages)"
            )
        return self._asked()

    def interpret(self, agent: str, parsed: Parsed) -> Parsed:
        """Hand over whatever was said."""
        flags = frozenset({_CUT}) if parsed.status == "truncated" else frozenset()
        return Parsed("valid", action=parsed.action, flags=flags)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Answer the only call that waits."""
        return self.play_jointly({agent: parsed})

    def play_jointly(self, utterances: Mapping[str, Parsed]) -> Move:
        """Answer the calls that wait, and end the episode if the program ends."""
        execution = self._execution
        execution.answer(
            {
                agent: Answer(said.action, "length" if _CUT in said.flags else "stop")
                for agent, said in utterances.items()
            }
        )
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

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Return what the agent is asked now."""
        return self._execution.messages(agent)

    def _asked(self) -> tuple[Step, ...]:
        return (frozenset(self._execution.asked),)

    @property
    def _execution(self) -> Execution:
        assert self.execution is not None
        return self.execution

    @property
    def _program(self) -> ProgramEnv:
        return cast(ProgramEnv, cast(Any, self.unwrapped))
