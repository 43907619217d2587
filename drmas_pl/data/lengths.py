"""Decide what happens to questions that are too long for the prompt budget.

Place in the data flow: files are checked and filtered with this before a run. In a run, a question that still leaves no room raises
``PromptOverflow`` for its own trajectories alone; it is never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from drmas_pl.errors import DataError
from drmas_pl.types import Task

Overlong = Literal["drop", "error"]


def within_length(
    tasks: Sequence[Task], limit: int, *, length: Callable[[str], int] = len, overlong: Overlong = "drop"
) -> tuple[Task, ...]:
    """Keep the tasks whose question is short enough.

    Args:
        tasks: Any tasks.
        limit: Greatest length of a question, at least 1.
        length: Measures a question; characters by default, pass a tokenizer's count for tokens.
        overlong: ``drop`` leaves the others out, ``error`` refuses them.

    Returns:
        The tasks kept, in their order.

    Raises:
        DataError: With ``error``, some question is too long; the message counts them and names the longest.
        ValueError: ``limit`` is below 1 or ``overlong`` is unknown.

    >>> [task.id for task in within_length([Task("a", "1 + 1?"), Task("b", "1 + 1 + 1 + 1?")], 8)]
    ['a']
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}; leave the check out to allow any length")
    if overlong not in ("drop", "error"):
        raise ValueError(f"overlong must be 'drop' or 'error', got {overlong!r}")
    measured = [(length(task.question), task) for task in tasks]
    found = [(size, task) for size, task in measured if size > limit]
    if found and overlong == "error":
        size, longest = max(found, key=lambda pair: pair[0])
        raise DataError(
            f"{len(found)} of {len(measured)} questions are longer than {limit}, the longest is task {longest.id!r} with {size}; "
            "raise the limit or drop them"
        )
    return tuple(task for size, task in measured if size <= limit)
