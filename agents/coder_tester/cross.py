"""Coder and tester at once: programs and tests of one task are run against each other, every program on every test.

Both write from the task alone. Under tree sampling with K candidates each, the coder's candidates are paid what the gold tests say of them,
and the tester's are compared by what they tell apart: a test that every right program passes is worth the share of wrong programs that
it rejects, one that some right program fails costs the share of wrong programs that it lets through. The best program is handed in.

References:
    Wang et al., 2025 (CURE), arXiv:2506.03136.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import gymnasium
import torch

from drmas_pl.agents.coder_tester.roles import Coder, Tester, read_tests
from drmas_pl.agents.coder_tester.team import CODER, TESTER, CodeEnvironment, fenced
from drmas_pl.functional.credit import cross_execution
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.team import Move, OnInvalid, Step, Team
from drmas_pl.types import Message


class CrossExecutionTeam(Team):
    """Lets coder and tester move once, at the same time, and hands the program in.

    Without tree sampling there is nothing to run against each other, and tests earn nothing of their own.

    Args:
        env: An environment that runs programs.
        tester_reward: Weight of what tests tell apart in the tester's local reward, at least 0.
        on_invalid: What an unusable utterance leads to: ``continue`` leaves it out, ``end`` ends the episode for both without reward.

    Raises:
        ValueError: An argument is out of its range, or the environment cannot run programs.
    """

    possible_agents: ClassVar[tuple[str, ...]] = (CODER, TESTER)
    grammars: ClassVar[Mapping[str, Grammar]] = {CODER: Coder.grammar, TESTER: Tester.grammar}

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        tester_reward: float = 1.0,
        on_invalid: OnInvalid = "continue",
    ) -> None:
        super().__init__(env, on_invalid=on_invalid)
        if not tester_reward >= 0:
            raise ValueError(f"tester_reward must be at least 0, got {tester_reward}")
        if not isinstance(self.unwrapped, CodeEnvironment):
            raise ValueError(
                f"coder and tester need an environment that runs programs, got {type(self.unwrapped).__name__}; choose env=code"
            )
        self.tester_reward = tester_reward

    def begin(self) -> tuple[Step, ...]:
        """Let both begin from the task."""
        return (frozenset({CODER, TESTER}),)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Play what one of the two said, the other's words being unusable."""
        return self.play_jointly({agent: parsed})

    def play_jointly(self, utterances: Mapping[str, Parsed]) -> Move:
        """Hand the program in."""
        program = utterances.get(CODER)
        messages = tuple(
            Message(agent, "program" if agent == CODER else "tests", parsed.action.strip("\n"))
            for agent, parsed in utterances.items()
        )
        if program is None:
            return Move(messages=messages, ends=True)
        return Move(action=fenced(program.action), messages=messages)

    def recover(self, agent: str, parsed: Parsed) -> Move:
        """Give up without a program."""
        return Move(ends=True)

    def compare(self, candidates: Mapping[str, Sequence[Parsed]]) -> dict[str, list[float]]:
        """Run every program on every test, and return what the tests are worth; an unusable candidate is worth 0."""
        programs = [fenced(parsed.action) for parsed in candidates.get(CODER, ()) if parsed.valid]
        suites = [
            self._code_env.make_cases(read_tests(parsed.action)) if parsed.valid else ()
            for parsed in candidates.get(TESTER, ())
        ]
        cases = [case for suite in suites for case in suite]
        if not programs or not cases:
            return {TESTER: [0.0] * len(suites)}
        passed = [[result.passed for result in self._code_env.check(text, cases)] for text in programs]
        gold = [self._code_env.judge(text).pass_rate for text in programs]
        _, worth = cross_execution(torch.tensor(passed), torch.tensor(gold))
        of_case = iter(worth.tolist())
        return {
            TESTER: [
                self.tester_reward * statistics.fmean([next(of_case) for _ in suite]) if suite else 0.0
                for suite in suites
            ]
        }

    @property
    def _code_env(self) -> CodeEnvironment:
        return cast(CodeEnvironment, self.unwrapped)
