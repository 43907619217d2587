"""Programming tasks: the team's action is a program, which is judged by hidden tests.

Place in the data flow: a team argues as long as it likes, then passes one program here; it runs in the sandbox on the task's gold tests.
A task's metadata has ``tests``, a list of ``{"input", "output"}``; it may have ``entry_point`` for a function to be called, ``examples``
of the same form as the tests, which the team may see, and ``solution``, a right program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from drmas_pl.data.readers import read_tasks
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.errors import EnvironmentFault
from drmas_pl.rewards.code import CaseResult, CodeGrader, TestCase, extract_program
from drmas_pl.sandbox import SandboxLimits, SandboxPool, make_sandbox
from drmas_pl.sandbox.base import MIB
from drmas_pl.types import MetricInfo, Task

Reward = Literal["pass_rate", "all_or_nothing"]
SHIPPED = "embedded:code/train"
# Results of programs on inputs; a team says the same ones again and again.
REMEMBERED = 8192


@dataclass(frozen=True, slots=True)
class CodeVerdict:
    """What the gold tests say of a program.

    Attributes:
        results: One per gold test.
    """

    results: tuple[CaseResult, ...]

    @property
    def pass_rate(self) -> float:
        """Share of tests that are passed."""
        return sum(result.passed for result in self.results) / len(self.results)

    @property
    def status(self) -> Literal["correct", "wrong"]:
        """``correct`` if every test is passed."""
        return "correct" if all(result.passed for result in self.results) else "wrong"


class CodeEnv(TextEnv):
    """Asks for a program or a function and runs it on hidden tests; one action ends the episode.

    The program is the last complete fenced block of the action, else the whole action. Success means that every gold test is passed.
    All clones share the sandbox; ``close`` ends what runs in it.

    Args:
        tasks: Tasks to draw from when ``reset`` is given none; None takes those that the package ships.
        reward: ``pass_rate`` pays the share of gold tests that are passed, ``all_or_nothing`` 1 for all and 0 otherwise.
        timeout: Seconds for each test, above 0.
        budget: Seconds for all tests of one program; tests that are left then count as not passed.
        memory_mb: Memory for each program, in MiB.
        tolerance: Largest difference between numbers that are still equal; 0 compares words. See :class:`CodeGrader`.
        sandbox: What isolates programs: ``builtin`` or ``bubblewrap``.
        workers: Programs at a time; None for as many as there are processor cores.

    Raises:
        ValueError: A setting is out of range.
        ConfigError: The sandbox does not work on this machine.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"grader"})
    metric: ClassVar[str] = "solved"
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "pass_rate": MetricInfo(
            "share of gold tests that the final program passes",
            "How near programs come that are not right altogether.",
            "rises; at least success",
        ),
        "failed_tests": MetricInfo(
            "share of gold tests that end with an error or at a limit of the sandbox",
            "Programs that do not run, rather than give a wrong answer.",
            "falls",
        ),
        "timed_out_tests": MetricInfo(
            "share of gold tests that run out of time, or are skipped since others have used it up",
            "Programs that are too slow or never end.",
            "near 0",
        ),
    }

    def __init__(
        self,
        tasks: Sequence[Task] | None = None,
        *,
        reward: Reward = "pass_rate",
        timeout: float = 5.0,
        budget: float = 60.0,
        memory_mb: int = 512,
        tolerance: float = 0.0,
        sandbox: str = "builtin",
        workers: int | None = None,
    ) -> None:
        if reward not in ("pass_rate", "all_or_nothing"):
            raise ValueError(f"reward must be 'pass_rate' or 'all_or_nothing', got {reward!r}")
        super().__init__(read_tasks(SHIPPED) if tasks is None else tasks)
        self.reward = reward
        pool = SandboxPool(
            make_sandbox(sandbox, SandboxLimits(memory=memory_mb * MIB)),
            workers=workers,
            remembered=REMEMBERED,
        )
        self.grader = CodeGrader(pool, timeout=timeout, budget=budget, tolerance=tolerance, wave=pool.workers)
        self._judged: tuple[str, CodeVerdict] | None = None

    def begin(self, task: Task) -> str:
        """Return the question."""
        self._judged = None
        if not gold_tests(task):
            raise EnvironmentFault(
                f"task {task.id!r} cannot be graded: its metadata has no tests; give it a list of input and output, or drop it"
            )
        return task.question

    def judge(self, text: str) -> CodeVerdict:
        """Run a program on the gold tests without ending the episode.

        Raises:
            RuntimeError: No task is being played.
            SandboxError: The sandbox failed.
        """
        task = self._playing()
        program = extract_program(text)
        if self._judged is None or self._judged[0] != program:
            results = self.grader.grade(
                program,
                gold_tests(task),
                entry_point=task.metadata.get("entry_point"),
                stop_early=self.reward == "all_or_nothing",
            )
            self._judged = (program, CodeVerdict(results))
        return self._judged[1]

    def make_cases(self, tests: Sequence[Mapping[str, Any]]) -> tuple[TestCase, ...]:
        """Turn made-up tests into cases, leaving out those that do not fit the task.

        Args:
            tests: Objects with input and output: two texts for a program; for a function a list of arguments and the value.
        """
        if self._playing().metadata.get("entry_point") is None:
            texts = (
                test for test in tests if isinstance(test["input"], str) and isinstance(test["output"], str)
            )
            return tuple(TestCase(test["input"], test["output"]) for test in texts)
        calls = (test for test in tests if isinstance(test["input"], list))
        return tuple(TestCase(json.dumps(test["input"]), json.dumps(test["output"])) for test in calls)

    def check(self, text: str, cases: Sequence[TestCase]) -> tuple[CaseResult, ...]:
        """Run a program on cases that somebody made up; earns nothing.

        Args:
            text: A program, as an action would be.
            cases: What to run it on.
        """
        entry_point = self._playing().metadata.get("entry_point")
        return self.grader.grade(extract_program(text), cases, entry_point=entry_point)

    def agreement(self, cases: Sequence[TestCase], *, wanted: int = 1) -> float | None:
        """Tell how far made-up cases agree with the task's own solution.

        Args:
            cases: Cases; one that repeats an input of another, or of an example that the team can see, does not count as agreeing.
            wanted: Number of cases that are asked for; fewer are filled up with some that do not agree.

        Returns:
            A share in [0, 1]; None where the task has no solution.
        """
        task = self._playing()
        solution = task.metadata.get("solution")
        if not solution:
            return None
        shown = {" ".join(case.input.split()) for case in read_cases(task.metadata.get("examples", ()))}
        fresh: dict[str, TestCase] = {}
        for case in cases:
            key = " ".join(case.input.split())
            if key not in shown:
                fresh.setdefault(key, case)
        results = self.grader.grade(
            str(solution), list(fresh.values()), entry_point=task.metadata.get("entry_point")
        )
        return sum(result.passed for result in results) / max(wanted, len(cases), 1)

    def act(self, action: str) -> StepResult:
        """Run the final program on the gold tests and end the episode."""
        verdict = self.judge(action)
        right = verdict.status == "correct"
        total = len(verdict.results)
        statuses = [result.status for result in verdict.results]
        late = sum(status in ("timeout", "skipped") for status in statuses)
        failed = sum(status not in ("passed", "wrong", "skipped") for status in statuses)
        metrics = {
            "pass_rate": verdict.pass_rate,
            "failed_tests": failed / total,
            "timed_out_tests": late / total,
        }
        reward = verdict.pass_rate if self.reward == "pass_rate" else float(right)
        return StepResult("", reward=reward, terminated=True, success=right, metrics=metrics)

    def close(self) -> None:
        """End what runs in the sandbox."""
        self.grader.close()
        super().close()

    def _playing(self) -> Task:
        if self.task is None:
            raise RuntimeError("CodeEnv.judge called before reset; there is no task to judge against")
        return self.task


def gold_tests(task: Task) -> tuple[TestCase, ...]:
    """Return the hidden tests of a task."""
    return read_cases(task.metadata.get("tests", ()))


def read_cases(rows: Any) -> tuple[TestCase, ...]:
    """Turn ``{"input", "output"}`` objects into cases.

    Raises:
        EnvironmentFault: Something else is there.
    """
    try:
        return tuple(TestCase(str(row["input"]), str(row["output"])) for row in rows)
    except (TypeError, KeyError) as error:
        raise EnvironmentFault(
            f"tests must be a list of objects with input and output, got {rows!r:.200}; fix the task's row"
        ) from error
