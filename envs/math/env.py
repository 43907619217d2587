"""Mathematics problems with one action: the team's final solution.

Place in the data flow: a team argues as long as it likes, then passes one solution text here; the mathematics grader turns it into reward.
"""

from __future__ import annotations

from collections.abc import Sequence

from drmas_pl.data.readers import read_tasks
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.errors import EnvironmentFault
from drmas_pl.rewards.math import grade
from drmas_pl.rewards.verdict import Verdict
from drmas_pl.types import Task

SHIPPED = "embedded:math/train"


class MathEnv(TextEnv):
    r"""Asks a question and grades one solution, whose answer stands in ``\boxed{…}``; reward 1 when right, else 0.

    Metrics of an episode: ``truncated_answer``, 1 when the solution broke off inside its answer.

    Args:
        tasks: Problems to draw from when ``reset`` is given none; None takes the arithmetic problems that the package ships.
    """

    def __init__(self, tasks: Sequence[Task] | None = None) -> None:
        super().__init__(read_tasks(SHIPPED) if tasks is None else tasks)
        self._judged: tuple[str, Verdict] | None = None

    def begin(self, task: Task) -> str:
        """Return the question."""
        self._judged = None
        return task.question

    def judge(self, text: str) -> Verdict:
        """Grade a solution of the current task without ending the episode; for diagnostics that must not be rewarded.

        Args:
            text: A solution.

        Returns:
            The grader's conclusion; never ``ungradable``.

        Raises:
            RuntimeError: No task is being played.
            EnvironmentFault: The reference cannot be graded against, or the grader failed.
        """
        if self.task is None:
            raise RuntimeError("MathEnv.judge called before reset; there is no task to judge against")
        if self._judged is None or self._judged[0] != text:
            self._judged = (text, grade(text, self.task.reference))
        verdict = self._judged[1]
        if verdict.status == "ungradable":
            raise EnvironmentFault(f"task {self.task.id!r} cannot be graded: {verdict.reason}; repair its reference or drop the task")
        return verdict

    def act(self, action: str) -> StepResult:
        """Grade the final solution and end the episode."""
        verdict = self.judge(action)
        return StepResult(
            observation="",
            reward=verdict.score,
            terminated=True,
            success=verdict.status == "correct",
            metrics={"truncated_answer": float(verdict.status == "truncated")},
        )
