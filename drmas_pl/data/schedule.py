"""Which tasks are played in which iteration: a pure function of the seed, so that a resumed run needs no cursor.

Each stream of tasks is a chain of epochs, every epoch a new permutation of all tasks. Iterations cut the chain into slices. Where a slice
spans two epochs, the new permutation begins with tasks that the slice does not hold yet; no task then comes twice in one iteration.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal

from drmas_pl.errors import DataError
from drmas_pl.seeding import derive_seed
from drmas_pl.types import Task

Balance = Literal["none", "data_source"]
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


class TaskStream:
    """An endless seeded sequence of the numbers 0 … size - 1 that iterations draw from.

    Args:
        size: How many there are, at least 1.
        per_iteration: Every iteration draws so many.
        seed: Decides the permutations; use different ones for different streams.
        extra: ``(share, members, rank)``: ``members`` streams take turns with ``share`` further draws per iteration, and this one is
            number ``rank`` of them.
        start: Maps an iteration to the number of draws before it, for streams that draw another number each time; it replaces the two
            regular shares.
    """

    def __init__(
        self,
        size: int,
        per_iteration: int,
        *,
        seed: int,
        extra: tuple[int, int, int] = (0, 1, 0),
        start: Callable[[int], int] | None = None,
    ) -> None:
        self.size = size
        self.per_iteration = per_iteration
        self.seed = seed
        self.share, self.members, self.rank = extra
        self._start = start
        self._memo: dict[int, list[int]] = {}

    def start(self, iteration: int) -> int:
        """Return how many draws come before ``iteration``.

        >>> [TaskStream(10, 3, seed=0, extra=(1, 2, 0)).start(iteration) for iteration in range(4)]
        [0, 4, 7, 11]
        """
        if self._start is not None:
            return self._start(iteration)
        rotated = iteration * self.share - self.rank
        return iteration * self.per_iteration + max(0, -(-rotated // self.members))

    def draw(self, iteration: int) -> list[int]:
        """Return the numbers of one iteration; without repetition unless it draws more than there are.

        >>> stream = TaskStream(5, 2, seed=0)
        >>> sorted(stream.draw(0) + stream.draw(1) + stream.draw(2)[:1])
        [0, 1, 2, 3, 4]
        """
        position = self.start(iteration)
        end = self.start(iteration + 1)
        drawn: list[int] = []
        while position < end:
            epoch, offset = divmod(position, self.size)
            part = self._order(epoch)[offset : offset + end - position]
            drawn += part
            position += len(part)
        return drawn

    def _order(self, epoch: int) -> list[int]:
        """Return the permutation of one epoch; what it depends on ends at the last epoch that opens with an iteration."""
        first = epoch
        while first not in self._memo and self._spanning(first)[0]:
            first -= 1
        for current in range(first, epoch + 1):
            if current not in self._memo:
                self._memo[current] = self._arrange(current)
            self._memo = {
                known: order for known, order in self._memo.items() if current - 1 <= known <= epoch
            }
        return self._memo[epoch]

    def _arrange(self, epoch: int) -> list[int]:
        """Shuffle one epoch; what the iteration across its border still needs comes first and is new to that iteration."""
        order = list(range(self.size))
        random.Random(derive_seed(self.seed, "epoch", epoch)).shuffle(order)
        before, after = self._spanning(epoch)
        if not before:
            return order
        held = set(self._memo[epoch - 1][-before:])
        head = [number for number in order if number not in held][:after]
        taken = set(head)
        return head + [number for number in order if number not in taken]

    def _spanning(self, epoch: int) -> tuple[int, int]:
        """Count the draws before and after the start of an epoch by the iteration across it; zeros if none, or if it must repeat anyway."""
        border = epoch * self.size
        beyond = 1
        while self.start(beyond) <= border:
            beyond *= 2
        iteration = bisect_right(range(beyond + 1), border, key=self.start) - 1
        start = self.start(iteration)
        end = self.start(iteration + 1)
        return (border - start, end - border) if end - start <= self.size else (0, 0)


class TaskSchedule:
    """Draws the tasks of each iteration.

    Args:
        tasks: What to draw from, at least one.
        tasks_per_iteration: How many each iteration plays.
        seed: Decides every order.
        balance: ``none`` draws from all tasks alike; ``data_source`` draws the same number per source, as far as each has enough, and
            lets the sources take turns with what cannot be divided.
        weights: Share of every data source, in any unit; then ``balance`` has no say. A source with few tasks and a large share comes
            round more often.

    Raises:
        ValueError: There are no tasks, ``tasks_per_iteration`` is below 1 or ``balance`` is unknown.
        DataError: ``weights`` do not name every source with a number that is finite and not negative.

    >>> tasks = [Task(str(number), f"{number}?") for number in range(5)]
    >>> schedule = TaskSchedule(tasks, 2, seed=0)
    >>> schedule.tasks_for(7) == TaskSchedule(tasks, 2, seed=0).tasks_for(7)
    True
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        tasks_per_iteration: int,
        *,
        seed: int,
        balance: Balance = "none",
        weights: Mapping[str, float] | None = None,
    ) -> None:
        if not tasks:
            raise ValueError("tasks must not be empty; give at least one task to train on")
        if tasks_per_iteration < 1:
            raise ValueError(f"tasks_per_iteration must be at least 1, got {tasks_per_iteration}")
        if balance not in ("none", "data_source"):
            raise ValueError(f"balance must be 'none' or 'data_source', got {balance!r}")
        self._seed = seed
        by_source = balance == "data_source" or bool(weights)
        pools: dict[str, list[Task]] = {}
        for task in tasks:
            pools.setdefault(task.data_source if by_source else "", []).append(task)
        self._pools = dict(sorted(pools.items()))
        if weights:
            self._streams = self._weighted_streams(weights, tasks_per_iteration)
        else:
            self._streams = self._even_streams(tasks_per_iteration)

    def _even_streams(self, tasks_per_iteration: int) -> dict[str, TaskStream]:
        base, rotating = split_evenly([len(pool) for pool in self._pools.values()], tasks_per_iteration)
        share = tasks_per_iteration - sum(base)
        return {
            source: TaskStream(
                len(pool),
                base[place],
                seed=derive_seed(self._seed, "tasks", source),
                extra=(share, len(rotating), rotating.index(place)) if place in rotating else (0, 1, 0),
            )
            for place, (source, pool) in enumerate(self._pools.items())
        }

    def _weighted_streams(
        self, weights: Mapping[str, float], tasks_per_iteration: int
    ) -> dict[str, TaskStream]:
        shares = WeightedShares(check_weights(weights, self._pools), tasks_per_iteration)
        return {
            source: TaskStream(
                len(self._pools[source]),
                tasks_per_iteration,
                seed=derive_seed(self._seed, "tasks", source),
                start=functools.partial(shares.start, place),
            )
            for place, source in enumerate(shares.names)
        }

    def tasks_for(self, iteration: int) -> tuple[Task, ...]:
        """Return the tasks of one iteration, sources mixed.

        Args:
            iteration: Counted from 0.

        Raises:
            ValueError: ``iteration`` is negative.
        """
        if iteration < 0:
            raise ValueError(f"iteration must be at least 0, got {iteration}")
        drawn = [
            self._pools[source][number]
            for source, stream in self._streams.items()
            for number in stream.draw(iteration)
        ]
        random.Random(derive_seed(self._seed, "order", iteration)).shuffle(drawn)
        return tuple(drawn)

    def replacements(
        self, dropped: Sequence[Task], played: Collection[str], *, iteration: int, draw: int
    ) -> tuple[Task, ...]:
        """Return other tasks in place of some that an iteration cannot use, from the same source where sources are balanced.

        Args:
            dropped: Tasks to replace.
            played: Ids of all tasks that the iteration has drawn so far.
            iteration: Counted from 0.
            draw: Number of the draw within the iteration, from 1; another draw gives other tasks.

        Returns:
            As many tasks as ``dropped``, or fewer where a source has no further ones.
        """
        wanted = Counter(self._pool_of(task) for task in dropped)
        found: list[Task] = []
        for source, count in sorted(wanted.items()):
            left = [task for task in self._pools[source] if task.id not in played]
            random.Random(derive_seed(self._seed, "replacements", source, iteration, draw)).shuffle(left)
            found += left[:count]
        return tuple(found)

    def _pool_of(self, task: Task) -> str:
        return task.data_source if task.data_source in self._pools else ""


class WeightedShares:
    """Divides the draws of all iterations among names in proportion to their weights, as evenly as whole numbers allow.

    Draw number j goes to the name whose share of [0, 1) holds the fractional part of j times the golden ratio, a sequence that fills
    every interval at its rate from the first draws on.

    Args:
        weights: Weights above 0 by name.
        per_iteration: Draws per iteration.

    >>> shares = WeightedShares({"easy": 3.0, "hard": 1.0}, 8)
    >>> [shares.start(0, iteration) for iteration in range(4)], [shares.start(1, iteration) for iteration in range(4)]
    ([0, 7, 13, 19], [0, 1, 3, 5])
    """

    def __init__(self, weights: Mapping[str, float], per_iteration: int) -> None:
        self.names = tuple(weights)
        self.per_iteration = per_iteration
        total = math.fsum(weights.values())
        self._ends = [end / total for end in itertools.accumulate(weights.values())]
        self._counts = [[0] * len(self.names)]

    def start(self, place: int, iteration: int) -> int:
        """Return how many draws the name at ``place`` has before ``iteration``."""
        while len(self._counts) <= iteration:
            first = (len(self._counts) - 1) * self.per_iteration
            counts = list(self._counts[-1])
            for draw in range(first, first + self.per_iteration):
                # The last end may fall short of 1 by rounding.
                counts[min(bisect_right(self._ends, draw * _GOLDEN % 1), len(counts) - 1)] += 1
            self._counts.append(counts)
        return self._counts[iteration][place]


def check_weights(weights: Mapping[str, float], sources: Collection[str]) -> dict[str, float]:
    """Return the weights above 0, in a fixed order.

    Raises:
        DataError: A source has no weight, a weight belongs to no source or is no number from 0 on, or all are 0.
    """
    if set(weights) != set(sources):
        raise DataError(f"weights must name every data source, {sorted(sources)}, got {sorted(weights)}")
    wrong = {name: value for name, value in weights.items() if not (math.isfinite(value) and value >= 0)}
    if wrong or not any(weights.values()):
        raise DataError(f"weights must be finite, not negative and not all 0, got {wrong or dict(weights)}")
    return {name: weights[name] for name in sorted(weights) if weights[name] > 0}


def split_evenly(sizes: Sequence[int], total: int) -> tuple[list[int], list[int]]:
    """Divide ``total`` draws among pools, none of which gives more than it has unless all must.

    Args:
        sizes: Tasks in each pool.
        total: Draws per iteration.

    Returns:
        Draws from each pool, and the places of the pools that take turns with the undivided rest.

    >>> split_evenly([100, 100], 24)
    ([12, 12], [0, 1])
    >>> split_evenly([3, 100, 100], 24)
    ([3, 10, 10], [1, 2])
    """
    if total > sum(sizes):
        return [total // len(sizes)] * len(sizes), list(range(len(sizes)))
    base = [0] * len(sizes)
    rotating = list(range(len(sizes)))
    left = total
    while small := [place for place in rotating if sizes[place] <= left // len(rotating)]:
        for place in small:
            base[place] = sizes[place]
        left -= sum(sizes[place] for place in small)
        rotating = [place for place in rotating if place not in small]
    for place in rotating:
        base[place] = left // len(rotating)
    return base, rotating
