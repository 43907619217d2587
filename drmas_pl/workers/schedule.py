"""Which worker groups learn in which iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from drmas_pl.utils.validation import check_fields

Order = Literal["joint", "alternate", "round_robin"]


@dataclass(frozen=True, slots=True)
class GroupSchedule:
    """Turns of the trainable groups; the others play with the weights they have.

    Attributes:
        order: ``joint`` trains every group in every iteration, ``alternate`` one group for ``every`` iterations, then the next, and
            ``round_robin`` another one in each iteration.
        every: Length of a turn in iterations, for ``alternate``.

    Raises:
        ValueError: ``order`` is unknown, or ``every`` is below 1 or given without ``alternate``.

    >>> GroupSchedule("alternate", every=2).active(["solver", "verifier"], 2)
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

    def active(self, groups: Sequence[str], iteration: int) -> list[str]:
        """Return the groups that learn in ``iteration``, counted from 0."""
        if self.order == "joint" or not groups:
            return list(groups)
        return [groups[iteration // self.every % len(groups)]]

    def count(self, groups: Sequence[str], name: str, iterations: int, *, warmup: int = 0) -> int:
        """Return in how many of the ``iterations`` after the first ``warmup`` the group ``name`` learns."""
        learning = range(warmup, warmup + iterations)
        return sum(name in self.active(groups, iteration) for iteration in learning)
