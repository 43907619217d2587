"""Which worker groups learn in which iteration.

A schedule is anything that is called with the names of the trainable groups and an iteration, and returns those that learn in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from drmas_pl.errors import ConfigError
from drmas_pl.utils.validation import check_fields

Order = Literal["joint", "alternate", "round_robin"]
Schedule = Callable[[Sequence[str], int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class GroupSchedule:
    """Turns of the trainable groups; the others play with the weights they have.

    Attributes:
        order: ``joint`` trains every group in every iteration, ``alternate`` one group for ``every`` iterations, then the next, and
            ``round_robin`` another one in each iteration.
        every: Length of a turn in iterations, for ``alternate``.

    Raises:
        ValueError: ``order`` is unknown, or ``every`` is below 1 or given without ``alternate``.

    >>> GroupSchedule("alternate", every=2)(["solver", "verifier"], 2)
    ['verifier']
    """

    order: Order = "joint"
    every: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.order not in get_args(Order):
            raise ValueError(f"order must be one of {list(get_args(Order))}, got {self.order!r}")
        if self.every < 1 or (self.every > 1 and self.order != "alternate"):
            raise ValueError(
                f"every must be at least 1, and 1 unless order=alternate, got every={self.every} with order={self.order}"
            )

    def __call__(self, groups: Sequence[str], iteration: int) -> list[str]:
        """Return the groups that learn in ``iteration``, counted from 0."""
        if self.order == "joint" or not groups:
            return list(groups)
        return [groups[iteration // self.every % len(groups)]]


def learning_groups(schedule: Schedule, groups: Sequence[str], iteration: int) -> list[str]:
    """Return the groups that learn in ``iteration``, counted from 0.

    Raises:
        ConfigError: The schedule names a group that is not trained.
    """
    names = list(schedule(groups, iteration))
    unknown = [name for name in names if name not in groups]
    if unknown:
        raise ConfigError(
            f"the schedule lets {unknown} learn in iteration {iteration}, but the trainable groups are {list(groups)}"
        )
    return names


def count_learning(
    schedule: Schedule, groups: Sequence[str], name: str, iterations: int, *, warmup: int = 0
) -> int:
    """Return in how many of the ``iterations`` after the first ``warmup`` the group ``name`` learns."""
    learning = range(warmup, warmup + iterations)
    return sum(name in learning_groups(schedule, groups, iteration) for iteration in learning)
