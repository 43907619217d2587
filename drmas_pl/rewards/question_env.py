"""A question, one answer, and any reward function: the environment for teams that end with a text.

Place in the data flow: a team argues as long as it likes, then passes one text here; the reward function pays it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.rewards.base import RewardFn, Verdict, check_reward, close_reward, grade_task
from drmas_pl.types import Task


class QuestionEnv(TextEnv):
    """Asks the question of a task and pays a reward function for the final text; a reward of 1 or more counts as solved.

    All clones share the reward function; ``close`` closes it.

    Args:
        reward: A function of text and references, see :class:`~drmas_pl.rewards.base.RewardFn`.
        tasks: Tasks to draw from when ``reset`` is given none.

    >>> env = QuestionEnv(lambda text, references: text in references, [Task("t", "1 + 1 =", ("2",))])
    >>> env.reset(seed=0)[0], env.step("2")[1:3]
    ('1 + 1 =', (1.0, True))
    """

    shared: ClassVar[frozenset[str]] = frozenset({"reward"})

    def __init__(self, reward: RewardFn, tasks: Sequence[Task] = ()) -> None:
        super().__init__(tasks)
        check_reward(reward)
        self.reward = reward
        self._judged: tuple[str, Verdict] | None = None

    def begin(self, task: Task) -> str:
        """Return the question."""
        self._judged = None
        return task.question

    def judge(self, text: str) -> Verdict:
        """Grade a text of the current task without ending the episode; for diagnostics that must not be rewarded.

        Raises:
            RuntimeError: No task is being played.
            EnvironmentFault: The reference cannot be graded against.
        """
        if self.task is None:
            raise RuntimeError("QuestionEnv.judge called before reset; there is no task to judge against")
        if self._judged is None or self._judged[0] != text:
            self._judged = (text, grade_task(self.reward, text, self.task))
        return self._judged[1]

    def act(self, action: str) -> StepResult:
        """Pay the final text and end the episode."""
        verdict = self.judge(action)
        return StepResult("", verdict.score, terminated=True, success=verdict.status == "correct")

    def close(self) -> None:
        """Close the reward function, if it has something to close."""
        close_reward(self.reward)
        super().close()
