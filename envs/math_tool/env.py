"""Mathematics problems that can be worked out with a program.

Place in the data flow: as in ``env=math`` the team's final solution is graded; on the way a team can have a program run in the sandbox and
compare answers. Neither earns anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from drmas_pl.envs.math import MathEnv
from drmas_pl.parsing.boxed import last_box
from drmas_pl.rewards.base import RewardFn, grade_task
from drmas_pl.rewards.code import extract_program
from drmas_pl.sandbox import SandboxLimits, SandboxPool, make_sandbox
from drmas_pl.sandbox.base import MIB
from drmas_pl.types import MetricInfo, Task

LONGEST_ANSWER = 200
# Results of programs; a team says the same ones again and again.
REMEMBERED = 8192


@dataclass(frozen=True, slots=True)
class Calculation:
    r"""What a program came to.

    Attributes:
        answer: Last line that it printed; empty if it failed, printed nothing, or something that cannot stand in a box.
        error: Why there is no answer; empty otherwise.
    """

    answer: str = ""
    error: str = ""

    @property
    def solution(self) -> str:
        r"""The answer as ``\boxed{…}``; empty without one."""
        return rf"\boxed{{{self.answer}}}" if self.answer else ""


class MathToolEnv(MathEnv):
    r"""Asks a question, runs programs on the way and grades one solution; reward 1 when right, else 0.

    Args:
        tasks: Problems to draw from when ``reset`` is given none; None takes the arithmetic problems that the package ships.
        reward: Grades the final solution, and tells whether two answers agree; None takes a :class:`~drmas_pl.rewards.pool.GraderPool`.
        timeout: Seconds for each program, above 0.
        memory_mb: Memory for each program, in MiB.
        sandbox: What isolates programs: ``builtin`` or ``bubblewrap``.
        workers: Programs at a time; None for as many as there are processor cores.

    Raises:
        ValueError: A setting is out of range.
        ConfigError: The sandbox does not work on this machine.
    """

    shared: ClassVar[frozenset[str]] = MathEnv.shared | {"pool"}
    metric_info: ClassVar[Mapping[str, MetricInfo]] = MathEnv.metric_info

    def __init__(
        self,
        tasks: Sequence[Task] | None = None,
        *,
        reward: RewardFn | None = None,
        timeout: float = 5.0,
        memory_mb: int = 512,
        sandbox: str = "builtin",
        workers: int | None = None,
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        super().__init__(tasks, reward=reward)
        self.timeout = timeout
        self.pool = SandboxPool(
            make_sandbox(sandbox, SandboxLimits(memory=memory_mb * MIB)),
            workers=workers,
            remembered=REMEMBERED,
        )

    def calculate(self, text: str) -> Calculation:
        """Run a program and take the last line that it prints for its answer.

        Args:
            text: A program, alone or in a fenced block.

        Raises:
            SandboxError: The sandbox failed.
        """
        result = self.pool.run(extract_program(text), timeout=self.timeout)
        if not result.ok:
            last = result.stderr.rstrip().rpartition("\n")[2][-LONGEST_ANSWER:]
            return Calculation(error=f"{result.status}: {last}" if last else result.status)
        answer = result.stdout.rstrip().rpartition("\n")[2].strip()
        box = last_box(rf"\boxed{{{answer}}}")
        if not answer or len(answer) > LONGEST_ANSWER or box is None or box.content != answer:
            return Calculation(error="no answer on the last line")
        return Calculation(answer)

    def agree(self, solution: str, calculation: Calculation) -> bool:
        """Tell whether a solution and a program come to the same answer.

        Args:
            solution: A text whose answer stands in a box.
            calculation: What a program came to; without an answer it agrees with nothing.
        """
        if not calculation.answer:
            return False
        task = replace(self.task or Task("agreement", ""), reference=(calculation.answer,))
        return grade_task(self.reward, solution, task).status == "correct"

    def close(self) -> None:
        """End grading processes and programs."""
        self.pool.close()
        super().close()
