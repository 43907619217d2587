"""Coder and tester in turns: a program, tests for it, and again until the program passes the tests.

The coder speaks first, then the tester. A program that passes the tester's tests, or else the last one, becomes the environment's single
action. Each agent can have a reward of its own beside the team's: the coder for how its program does on the gold tests, the tester for how
its tests agree with the task's own solution. The two never see gold tests or solution.

References:
    Stronger-MAS, arXiv:2510.11062 (the two roles and their rewards).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import gymnasium

from drmas_pl.agents.coder_tester.roles import Coder, Tester, read_tests
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.rewards.code import CaseResult, TestCase
from drmas_pl.team import Move, OnInvalid, Team
from drmas_pl.types import Message, MetricInfo

CODER = "coder"
TESTER = "tester"


class ProgramVerdict(Protocol):
    """What gold tests say of a program."""

    @property
    def pass_rate(self) -> float:
        """Share of gold tests that are passed."""
        ...


@runtime_checkable
class CodeEnvironment(Protocol):
    """An environment that runs programs; :class:`drmas_pl.envs.code.CodeEnv` is one."""

    def judge(self, text: str) -> ProgramVerdict:
        """Run a program on the gold tests."""
        ...

    def make_cases(self, tests: Sequence[Mapping[str, Any]]) -> tuple[TestCase, ...]:
        """Turn made-up tests into cases, leaving out those that do not fit the task."""
        ...

    def check(self, text: str, cases: Sequence[TestCase]) -> tuple[CaseResult, ...]:
        """Run a program on made-up cases."""
        ...

    def agreement(self, cases: Sequence[TestCase], *, wanted: int = 1) -> float | None:
        """Tell how far made-up cases agree with the task's own solution."""
        ...


class CoderTesterTeam(Team):
    """Plays coder → tester → coder … on a programming task.

    Args:
        env: An environment that runs programs.
        max_rounds: Largest number of programs, at least 1.
        coder_reward: Local reward of the coder for a program that passes all gold tests, in proportion for some of them; at least 0.
        tester_reward: Local reward of the tester for tests that all agree with the task's own solution, in proportion for some of them;
            at least 0. Tests that repeat each other or the task's examples do not count, nor do any where the task has no solution.
        tests_wanted: Number of tests for the whole reward, at least 1; with fewer the missing ones count as wrong.
        on_invalid: ``end`` ends the episode without reward. ``continue`` spends the round of a coder without a program, and takes unusable
            tests for a failed check.

    Raises:
        ValueError: An argument is out of its range, or the environment cannot run programs.
    """

    possible_agents: ClassVar[tuple[str, ...]] = (CODER, TESTER)
    grammars: ClassVar[Mapping[str, Grammar]] = {CODER: Coder.grammar, TESTER: Tester.grammar}
    highlights = ("first_pass_rate", "tests_agree")
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "rounds": MetricInfo(
            "number of programs; 0 if the first turn was not valid",
            "How often the team starts over.",
            "between 1 and max_rounds",
        ),
        "first_pass_rate": MetricInfo(
            "share of gold tests that the first program passes; 0 also if it was not valid",
            "What the coder is worth alone.",
            "rises; below pass_rate where the tester earns its place",
        ),
        "tests_agree": MetricInfo(
            "share of the first round's tests, of at least tests_wanted, that agree with the task's own solution and are new",
            "What the tester's tests are worth.",
            "towards 1",
            conditional=True,
        ),
        "tests_passed": MetricInfo(
            "1 if the episode ended since a program passed all tests of the tester, else 0",
            "How often the team agrees before its last round is over.",
        ),
    }

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        max_rounds: int = 2,
        coder_reward: float = 1.0,
        tester_reward: float = 1.0,
        tests_wanted: int = 4,
        on_invalid: OnInvalid = "end",
    ) -> None:
        super().__init__(env, on_invalid=on_invalid)
        if max_rounds < 1 or tests_wanted < 1:
            raise ValueError(
                f"max_rounds and tests_wanted must be at least 1, got {max_rounds} and {tests_wanted}"
            )
        if coder_reward < 0 or tester_reward < 0:
            raise ValueError(
                f"coder_reward and tester_reward must be at least 0, got {coder_reward} and {tester_reward}"
            )
        if not isinstance(self.unwrapped, CodeEnvironment):
            raise ValueError(
                f"coder and tester need an environment that runs programs, got {type(self.unwrapped).__name__}; choose env=code"
            )
        self.max_rounds = max_rounds
        self.coder_reward = coder_reward
        self.tester_reward = tester_reward
        self.tests_wanted = tests_wanted
        self.round = 0
        self.program = ""

    def begin(self) -> tuple[str, ...]:
        """Let the coder start from nothing."""
        self.round = 0
        self.program = ""
        return (CODER,)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Pass a program on to the tester; run it on the tests."""
        if agent == TESTER:
            return self._tested(parsed.action)
        self.round += 1
        self.program = parsed.action
        rate = self._code_env.judge(fenced(self.program)).pass_rate
        metrics = {"rounds": float(self.round)}
        if self.round == 1:
            metrics["first_pass_rate"] = rate
        return Move(
            (TESTER,),
            messages=(Message(CODER, "program", self.program.strip("\n")),),
            local_reward=self.coder_reward * rate,
            metrics=metrics,
        )

    def recover(self, agent: str, parsed: Parsed) -> Move:
        """Spend the round of a coder without a program; take unusable tests for a failed check."""
        if agent == CODER:
            self.round += 1
        return self._go_on(passed=False, metrics={"rounds": float(self.round)})

    @property
    def _code_env(self) -> CodeEnvironment:
        return cast(CodeEnvironment, self.unwrapped)

    def _tested(self, text: str) -> Move:
        """Run the program on the tests; reward these by the task's own solution."""
        env = self._code_env
        tests = read_tests(text)
        cases = env.make_cases(tests)
        agreement = env.agreement(cases, wanted=max(self.tests_wanted, len(tests)))
        results = env.check(fenced(self.program), cases)
        passed = len(cases) == len(tests) and all(result.passed for result in results)
        messages = (
            Message(TESTER, "tests", text),
            Message("env", "result", describe_results(cases, results)),
        )
        metrics = {"tests_passed": float(passed)}
        if self.round == 1 and agreement is not None:
            metrics["tests_agree"] = agreement
        return self._go_on(
            passed=passed,
            messages=messages,
            local_reward=self.tester_reward * (agreement or 0.0),
            metrics=metrics,
        )

    def _go_on(
        self,
        *,
        passed: bool,
        metrics: Mapping[str, float],
        messages: tuple[Message, ...] = (),
        local_reward: float = 0.0,
    ) -> Move:
        """Hand the program in if it passed or no round is left; else ask for another one."""
        over = passed or self.round >= self.max_rounds
        return Move(
            () if over else (CODER,),
            action=fenced(self.program) if over else None,
            messages=messages,
            local_reward=local_reward,
            metrics=metrics,
        )


def describe_results(cases: Sequence[TestCase], results: Sequence[CaseResult]) -> str:
    """Say how a program did on the tester's tests, with the first one that it failed.

    >>> cases = [TestCase("1", "2"), TestCase("2", "3")]
    >>> print(describe_results(cases, [CaseResult("passed", "2"), CaseResult("wrong", "4")]))
    1 of 2 tests pass. First failure:
    input: 2
    expected: 3
    answer: 4 (wrong)
    """
    total = f"{sum(result.passed for result in results)} of {len(results)} tests pass."
    for case, result in zip(cases, results, strict=True):
        if not result.passed:
            said = f"{result.answer} ({result.status})".strip()
            return f"{total} First failure:\ninput: {case.input[:500]}\nexpected: {case.output[:500]}\nanswer: {said}"
    return total


def fenced(program: str) -> str:
    """Write a program as the environment reads it; without one there is nothing to run."""
    return f"```python\n{program}\n```" if program.strip() else ""
