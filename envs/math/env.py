"""Mathematics problems with one action: the team's final solution.

Place in the data flow: a team argues as long as it likes, then passes one solution text here; the mathematics grader turns it into reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from drmas_pl.data.readers import read_tasks
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.rewards.base import RewardFn, Verdict, check_reward, close_reward, grade_task
from drmas_pl.rewards.pool import GraderPool
from drmas_pl.types import MetricInfo, Task

SHIPPED = "embedded:math/train"


class MathEnv(TextEnv):
    r"""Asks a question and grades one solution, whose answer stands in ``\boxed{…}``; reward 1 when right, else 0.

    The shipped grader runs under a clock in worker processes, which start when the first answer needs more than a comparison of numbers.
    All clones share them; ``close`` ends them.

    Args:
        tasks: Problems to draw from when ``reset`` is given none; None takes the arithmetic problems that the package ships.
        reward: Grades the final solution; None takes a :class:`~drmas_pl.rewards.pool.GraderPool`.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"reward"})
    metric: ClassVar[str] = "accuracy"
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "truncated_answer": MetricInfo(
            "1 if the final solution broke off inside its answer, else 0",
            "Answers lost to the limit of tokens.",
            "near 0; otherwise raise model.max_new_tokens",
        )
    }

    def __init__(self, tasks: Sequence[Task] | None = None, *, reward: RewardFn | None = None) -> None:
        super().__init__(read_tasks(SHIPPED) if tasks is None else tasks)
        self.reward: RewardFn = GraderPool() if reward is None else reward
        check_reward(self.reward)
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
            The reward function's conclusion; never ``ungradable``.

        Raises:
            RuntimeError: No task is being played.
            EnvironmentFault: The reference cannot be graded against, or the grader failed or ran out of time.
        """
        if self.task is None:
            raise RuntimeError("MathEnv.judge called before reset; there is no task to judge against")
        if self._judged is None or self._judged[0] != text:
            self._judged = (text, grade_task(self.reward, text, self.task))
        return self._judged[1]

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

    def close(self) -> None:
        """End the grading processes."""
        close_reward(self.reward)
        super().close()
