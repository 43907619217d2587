"""What is true of whole sets of tasks: their fingerprint, how they are mixed, whether they overlap."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from drmas_pl.errors import DataError
from drmas_pl.seeding import derive_seed
from drmas_pl.types import Task
from drmas_pl.utils.questions import normalise


def fingerprint(tasks: Sequence[Task]) -> str:
    """Hash everything of the tasks that a run can see, their order included.

    Args:
        tasks: Any number of tasks with JSON-like metadata.

    Returns:
        32 hexadecimal digits, the same on every machine and for every file format.

    Raises:
        DataError: The metadata of a task holds something without a stable written form.

    >>> fingerprint([Task("a", "1 + 1?", ("2",))]) == fingerprint([Task("a", "1 + 1?", ("2",))])
    True
    >>> fingerprint([Task("a", "1 + 1?", ("2",))]) == fingerprint([Task("a", "1 + 1?", ("3",))])
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for task in tasks:
        content = [task.id, task.data_source, task.question, list(task.reference), task.metadata]
        try:
            text = json.dumps(
                content, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=_written
            )
        except TypeError as error:
            raise DataError(
                f"task {task.id!r}: metadata must be JSON-like, got {error}; use texts, numbers, lists and objects"
            ) from error
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def check_unique_ids(tasks: Sequence[Task], name: str) -> None:
    """Make sure that no two tasks of a split share an id, from which seeds and groups of trajectories are made.

    Args:
        tasks: Tasks of one split.
        name: Name of the split.

    Raises:
        DataError: Two tasks have the same id.

    >>> check_unique_ids([Task("a", "1 + 1?"), Task("a", "1 + 2?")], "train")
    Traceback (most recent call last):
    drmas_pl.errors.DataError: train: tasks must have ids of their own, got 'a' 2 times (1 of 1 ids repeated), for '1 + 1?' ...
    """
    counts = Counter(task.id for task in tasks)
    repeated = [task for task in counts if counts[task] > 1]
    if repeated:
        first = repeated[0]
        questions = [repr(task.question[:80]) for task in tasks if task.id == first]
        raise DataError(
            f"{name}: tasks must have ids of their own, got {first!r} {counts[first]} times ({len(repeated)} of {len(counts)} ids "
            f"repeated), for {questions[0]} and {questions[1]}; they would share seeds and be compared with each other, so rename "
            "them or remove repeated tasks"
        )


def check_disjoint(
    train: Sequence[Task] = (), validation: Sequence[Task] = (), *, test: Sequence[Task] = ()
) -> None:
    """Make sure that no question stands in two splits, neither letter by letter nor in :func:`normalise`\\ d form.

    Raises:
        DataError: Two splits share a question; the message counts them and shows examples.

    >>> check_disjoint([Task("a", "1 + 1?")], [Task("b", "1 + 2?")])
    >>> check_disjoint([Task("a", "1 + 1?")], test=[Task("b", " 1 +  1 ")])
    Traceback (most recent call last):
    drmas_pl.errors.DataError: train and test share 1 question (0 exactly, 1 normalised), for example task 'a' and task 'b': '1 + 1?'; ...
    """
    findings = []
    splits = {"train": train, "validation": validation, "test": test}
    for (name, tasks), (other_name, others) in combinations(splits.items(), 2):
        known = {normalise(task.question): task for task in tasks}
        shared = [(known[key], task) for task in others if (key := normalise(task.question)) in known]
        if shared:
            exact = {task.question for task in tasks} & {task.question for task in others}
            count, (first, second) = len({normalise(task.question) for _, task in shared}), shared[0]
            alike = len({normalise(question) for question in exact})
            findings.append(
                f"{name} and {other_name} share {count} question{'s' * (count > 1)} ({alike} exactly, {count - alike} normalised), "
                f"for example task {first.id!r} and task {second.id!r}: {first.question[:80]!r}"
            )
    if findings:
        raise DataError(f"{'; '.join(findings)}; remove them from one split, or allow the overlap on purpose")


def source_table(splits: Mapping[str, Sequence[Task]]) -> str:
    """Count tasks per data source and split.

    Args:
        splits: Tasks by name of the split.

    Returns:
        A plain-text table, one line per source and one for the total.

    >>> print(source_table({"train": [Task("a", "?", data_source="nq"), Task("b", "?", data_source="nq")], "test": []}))
    source  train  test
    nq          2     0
    total       2     0
    """
    counts = {name: Counter(task.data_source for task in tasks) for name, tasks in splits.items()}
    sources = sorted(set().union(*counts.values()))
    lines = [["source", *counts]]
    lines += [[source, *(str(count[source]) for count in counts.values())] for source in sources]
    lines.append(["total", *(str(count.total()) for count in counts.values())])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
        ).rstrip()
        for line in lines
    )


def stratified_subset(tasks: Sequence[Task], size: int, *, seed: int) -> tuple[Task, ...]:
    """Choose tasks so that every data source keeps its share, up to rounding, and at least one task if there is room for one of each.

    Args:
        tasks: What to choose from.
        size: How many to keep; all are kept when there are no more.
        seed: Decides which.

    Returns:
        The chosen tasks in their original order.

    Raises:
        ValueError: ``size`` is below 1.

    >>> tasks = [Task(str(i), f"{i}?", data_source="even" if i % 2 == 0 else "odd") for i in range(10)]
    >>> [task.data_source for task in stratified_subset(tasks, 4, seed=0)].count("even")
    2
    """
    if size < 1:
        raise ValueError(f"a subset must hold at least 1 task, got {size}; use None to keep all")
    if size >= len(tasks):
        return tuple(tasks)
    places: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        places.setdefault(task.data_source, []).append(place)
    quota = _quota({source: len(found) for source, found in places.items()}, size)
    chosen: list[int] = []
    for source, found in places.items():
        chosen += random.Random(derive_seed(seed, "subset", source)).sample(found, quota[source])
    return tuple(tasks[place] for place in sorted(chosen))


def _quota(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Return how many of ``size`` tasks come from each source: in proportion, by largest remainders, and one at least where there is room.

    >>> _quota({"large": 980, "middle": 15, "small": 5}, 10)
    {'large': 8, 'middle': 1, 'small': 1}
    """
    total = sum(counts.values())
    quota = {source: size * count // total for source, count in counts.items()}
    by_remainder = sorted(counts, key=lambda source: (-(size * counts[source] % total), source))
    for source in by_remainder[: size - sum(quota.values())]:
        quota[source] += 1
    for source in counts if size >= len(counts) else ():
        if quota[source] == 0:
            quota[max(quota, key=lambda name: (quota[name], name))] -= 1
            quota[source] = 1
    return quota


def _written(value: Any) -> str:
    """Write the values that Parquet has beyond JSON."""
    if isinstance(value, bytes):
        return value.hex()
    if type(value).__module__ in ("datetime", "decimal"):
        return str(value)
    raise TypeError(f"a {type(value).__name__}, which has no stable written form")
