"""The contract of reward functions, and what graders conclude.

Place in the data flow: an environment hands the text that ends an episode to its reward function and turns the ``Verdict`` into reward and
outcome. ``ungradable`` never earns anything: the task is dropped and counted instead of being trained on.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from drmas_pl.errors import EnvironmentFault
from drmas_pl.types import Task
from drmas_pl.utils.validation import to_number

References = str | Sequence[str]

Grade = Literal["correct", "wrong", "ungradable", "truncated"]
Reason = Literal[
    "string",
    "number",
    "symbolic",
    "different",
    "no box",
    "empty box",
    "unreadable answer",
    "answer too large",
    "unfinished box",
    "unfinished think",
    "unreadable reference",
    "reference too large",
    "timeout",
    "worker died",
    "grader error",
    "scored",
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Hold a grader's conclusion about one answer.

    Attributes:
        status: The conclusion; ``ungradable`` blames the reference or the grader, never the answer.
        reason: For correct answers the layer that decided; otherwise what went wrong. A closed set, fit for metric names.
        extracted: The answer that was compared; empty when none was found.
        points: Score of a grader that counts in parts; None for 1 or 0 by status.

    Example:
        >>> Verdict("correct", "number", "42").score
        1.0
    """

    status: Grade
    reason: Reason
    extracted: str = ""
    points: float | None = None

    @property
    def score(self) -> float:
        """Return the points; where there are none 1.0 for a correct answer and 0.0 for anything else."""
        return float(self.status == "correct") if self.points is None else self.points


class RewardFn(Protocol):
    """Grade a final text; a plain function suffices, and one with a parameter called ``task`` gets the whole task by that name.

    A number is the reward, and from 1 on the task counts as solved. An object with a ``close`` method is closed with its environment.
    """

    def __call__(self, text: str, references: Sequence[str], /) -> Verdict | float:
        """Compare ``text`` with the task's references."""
        ...


def check_reward(reward: Any) -> None:
    """Refuse what is no reward function.

    Raises:
        TypeError: It cannot be called.
    """
    if not callable(reward):
        raise TypeError(f"reward must be a function of text and references, got {reward!r}")


def close_reward(reward: RewardFn) -> None:
    """Close a reward function that has something to close."""
    close = getattr(reward, "close", None)
    if close is not None:
        close()


def grade_task(reward: RewardFn, text: str, task: Task) -> Verdict:
    """Grade a text against a task.

    Raises:
        ContractError: The function returned neither a verdict nor a finite number.
        EnvironmentFault: The verdict is ``ungradable``.

    >>> grade_task(lambda text, references: 0.5 * (text in references), "b", Task("t", "?", ("a", "b"))).score
    0.5
    """
    more: Any = {"task": task} if "task" in inspect.signature(reward).parameters else {}
    found = reward(text, task.reference, **more)
    if not isinstance(found, Verdict):
        name = getattr(reward, "__qualname__", type(reward).__name__)
        points = to_number(f"what the reward {name} returns", found)
        return Verdict("correct" if points >= 1 else "wrong", "scored", text, points)
    if found.status == "ungradable":
        raise EnvironmentFault(
            f"task {task.id!r} cannot be graded: {found.reason}; repair its reference or drop the task"
        )
    return found


def alternatives(references: References) -> Sequence[str]:
    """Return one reference or several as a sequence."""
    return (references,) if isinstance(references, str) else references
