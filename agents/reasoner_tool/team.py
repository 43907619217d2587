"""Reasoner and programmer work on the same problem, each alone, until they agree.

In each round the reasoner writes a solution, then the programmer a program, without having seen that solution. If the program's output
is the reasoner's answer, or the last round is over, the output becomes the environment's single action. Otherwise both see the round and
go again.

References:
    Stronger-MAS, arXiv:2510.11062 (the two roles and the end on agreement).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, cast, runtime_checkable

import gymnasium

from drmas_pl.agents.reasoner_tool.roles import Programmer, Reasoner
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.rewards.base import Verdict
from drmas_pl.team import Move, OnInvalid, Team
from drmas_pl.types import Message, MetricInfo

REASONER = "reasoner"
PROGRAMMER = "programmer"


class ToolAnswer(Protocol):
    """What a program came to."""

    @property
    def answer(self) -> str:
        """Last line that it printed; empty if there is none."""
        ...

    @property
    def error(self) -> str:
        """Why there is no answer."""
        ...

    @property
    def solution(self) -> str:
        """The answer as the environment grades it; empty without one."""
        ...


@runtime_checkable
class ToolEnvironment(Protocol):
    """An environment that runs programs on the way; :class:`drmas_pl.envs.math_tool.MathToolEnv` is one."""

    def judge(self, text: str) -> Verdict:
        """Grade a solution without ending the episode."""
        ...

    def calculate(self, text: str) -> ToolAnswer:
        """Run a program."""
        ...

    def agree(self, solution: str, calculation: ToolAnswer) -> bool:
        """Tell whether a solution and a program come to the same answer."""
        ...


class ReasonerToolTeam(Team):
    """Plays reasoner → programmer → reasoner … on a problem with one final answer.

    Args:
        env: An environment that runs programs and grades solutions.
        max_rounds: Largest number of programs, at least 1.
        reasoner_reward: Local reward of the reasoner for a right solution, at least 0.
        programmer_reward: Local reward of the programmer for a program with the right answer, at least 0.
        on_invalid: ``end`` ends the episode without reward. ``continue`` goes on without a solution, or without an answer of a program.

    Raises:
        ValueError: An argument is out of its range, or the environment cannot run programs.
    """

    possible_agents: ClassVar[tuple[str, ...]] = (REASONER, PROGRAMMER)
    grammars: ClassVar[Mapping[str, Grammar]] = {REASONER: Reasoner.grammar, PROGRAMMER: Programmer.grammar}
    highlights = ("reasoner_correct", "program_correct")
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "rounds": MetricInfo(
            "number of rounds begun by a turn of the reasoner; 0 if the first turn ended the episode",
            "How often the team starts over.",
            "between 1 and max_rounds",
        ),
        "reasoner_correct": MetricInfo(
            "1 if the reasoner's first solution is right, else 0; 0 also if it was not valid",
            "What the reasoner is worth alone.",
            "rises",
        ),
        "program_correct": MetricInfo(
            "1 if the first program comes to the right answer, else 0; 0 also if it was not valid",
            "What the programmer is worth alone.",
            "rises; below success where further rounds earn their place",
        ),
        "program_failed": MetricInfo(
            "1 if the last program came to no answer, else 0",
            "Programs that fail, are too slow or print nothing.",
            "falls",
        ),
        "agreed": MetricInfo(
            "1 if the episode ended since both came to the same answer, else 0",
            "How often the team agrees before its last round is over.",
        ),
    }

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        max_rounds: int = 2,
        reasoner_reward: float = 0.0,
        programmer_reward: float = 0.0,
        on_invalid: OnInvalid = "end",
    ) -> None:
        super().__init__(env, on_invalid=on_invalid)
        if max_rounds < 1:
            raise ValueError(f"max_rounds must be at least 1, got {max_rounds}")
        if reasoner_reward < 0 or programmer_reward < 0:
            raise ValueError(
                f"reasoner_reward and programmer_reward must be at least 0, got {reasoner_reward} and {programmer_reward}"
            )
        if not isinstance(self.unwrapped, ToolEnvironment):
            raise ValueError(
                f"reasoner and programmer need an environment that runs programs, got {type(self.unwrapped).__name__}; choose env=math_tool"
            )
        self.max_rounds = max_rounds
        self.reasoner_reward = reasoner_reward
        self.programmer_reward = programmer_reward
        self.round = 0
        self.solution = ""

    def begin(self) -> tuple[str, ...]:
        """Let the reasoner start from nothing."""
        self.round = 0
        self.solution = ""
        return (REASONER,)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Keep a solution and ask for a program; run the program and compare."""
        return self._reasoned(parsed.action) if agent == REASONER else self._programmed(parsed.action)

    def recover(self, agent: str, parsed: Parsed) -> Move:
        """Go on without a solution, or without an answer of a program."""
        return self._reasoned("") if agent == REASONER else self._go_on("", agreed=False)

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Return all messages; the programmer does not see the solution of the round that is being played."""
        hidden = agent == PROGRAMMER and bool(self.history) and self.history[-1].kind == "solution"
        return tuple(self.history[:-1] if hidden else self.history)

    @property
    def _tool_env(self) -> ToolEnvironment:
        return cast(ToolEnvironment, self.unwrapped)

    def _reasoned(self, solution: str) -> Move:
        self.round += 1
        self.solution = solution
        right = bool(solution) and self._tool_env.judge(solution).status == "correct"
        metrics = {"rounds": float(self.round)}
        if self.round == 1:
            metrics["reasoner_correct"] = float(right)
        return Move(
            (PROGRAMMER,),
            messages=(Message(REASONER, "solution", solution),) if solution else (),
            local_reward=self.reasoner_reward * right,
            metrics=metrics,
        )

    def _programmed(self, program: str) -> Move:
        env = self._tool_env
        found = env.calculate(f"```python\n{program}\n```")
        right = bool(found.answer) and env.judge(found.solution).status == "correct"
        agreed = bool(self.solution) and env.agree(self.solution, found)
        metrics = {"program_failed": float(not found.answer), "agreed": float(agreed)}
        if self.round == 1:
            metrics["program_correct"] = float(right)
        messages = (
            Message(PROGRAMMER, "program", program.strip("\n")),
            Message("env", "result", found.answer or found.error),
        )
        return self._go_on(
            found.solution,
            agreed=agreed,
            messages=messages,
            local_reward=self.programmer_reward * right,
            metrics=metrics,
        )

    def _go_on(
        self,
        answer: str,
        *,
        agreed: bool,
        messages: tuple[Message, ...] = (),
        local_reward: float = 0.0,
        metrics: Mapping[str, float] | None = None,
    ) -> Move:
        """Hand the program's answer in if both agree or no round is left; else play another one."""
        over = agreed or self.round >= self.max_rounds
        return Move(
            () if over else (REASONER,),
            action=answer if over else None,
            messages=messages,
            local_reward=local_reward,
            metrics=metrics or {"program_failed": 1.0, "agreed": 0.0},
        )
