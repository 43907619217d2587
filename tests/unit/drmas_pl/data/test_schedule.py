"""Which tasks come when: no repetition, no loss at epoch borders, nothing remembered."""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drmas_pl.data.schedule import TaskSchedule, TaskStream, split_evenly
from drmas_pl.errors import DataError
from drmas_pl.types import Task


def make_tasks(*sizes: int) -> list[Task]:
    return [
        Task(f"{source}-{number}", f"{source} {number}?", data_source=f"s{source}")
        for source, size in enumerate(sizes)
        for number in range(size)
    ]


def ids(tasks: tuple[Task, ...]) -> list[str]:
    return [task.id for task in tasks]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("per_iteration", [1, 2, 3, 5, 7, 12, 13, 30])
def test_every_epoch_holds_every_number_once(size: int, per_iteration: int) -> None:
    stream = TaskStream(size, per_iteration, seed=0)
    drawn = [stream.draw(iteration) for iteration in range(40)]
    flat = list(chain(*drawn))
    assert all(len(numbers) == per_iteration for numbers in drawn)
    for start in range(0, len(flat) - size, size):
        assert sorted(flat[start : start + size]) == list(range(size))
    if per_iteration <= size:
        assert all(len(set(numbers)) == per_iteration for numbers in drawn)


def test_an_iteration_that_ends_with_the_epoch_is_followed_by_a_new_permutation() -> None:
    stream = TaskStream(6, 3, seed=0)
    first, second = stream.draw(0) + stream.draw(1), stream.draw(2) + stream.draw(3)
    assert sorted(first) == sorted(second) == list(range(6))
    assert first != second


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    total=st.integers(1, 40),
    seed=st.integers(0, 3),
    asked=st.lists(st.integers(0, 120), min_size=1, max_size=5),
)
def test_an_iteration_does_not_depend_on_what_was_asked_before(
    sizes: list[int], total: int, seed: int, asked: list[int]
) -> None:
    tasks = make_tasks(*sizes)
    for balance in ("none", "data_source"):
        walked = TaskSchedule(tasks, total, seed=seed, balance=balance)
        for iteration in range(3):
            walked.tasks_for(iteration)
        for iteration in asked:
            fresh = TaskSchedule(tasks, total, seed=seed, balance=balance).tasks_for(iteration)
            assert walked.tasks_for(iteration) == fresh
            assert len(fresh) == total
            assert len(set(ids(fresh))) == total or total > len(tasks)


def test_seed_and_iteration_change_the_draw() -> None:
    tasks = make_tasks(50)
    draws = {
        tuple(ids(TaskSchedule(tasks, 10, seed=seed).tasks_for(iteration)))
        for seed in range(4)
        for iteration in range(3)
    }
    assert len(draws) == 12


def test_sources_are_balanced_in_every_iteration() -> None:
    schedule = TaskSchedule(make_tasks(300, 100), 24, seed=0, balance="data_source")
    for iteration in range(60):
        assert Counter(task.data_source for task in schedule.tasks_for(iteration)) == {"s0": 12, "s1": 12}
    unbalanced = TaskSchedule(make_tasks(300, 100), 24, seed=0)
    assert Counter(task.data_source for task in unbalanced.tasks_for(0)) != {"s0": 12, "s1": 12}


def test_sources_take_turns_with_the_rest() -> None:
    schedule = TaskSchedule(make_tasks(30, 30, 30), 4, seed=0, balance="data_source")
    counts = [Counter(task.data_source for task in schedule.tasks_for(iteration)) for iteration in range(6)]
    assert all(sorted(count.values()) == [1, 1, 2] for count in counts)
    assert sum(counts, Counter()) == {"s0": 8, "s1": 8, "s2": 8}


def test_fewer_tasks_than_sources_still_reach_every_source() -> None:
    schedule = TaskSchedule(make_tasks(4, 4, 4, 4, 4), 2, seed=0, balance="data_source")
    counts = Counter(task.data_source for iteration in range(5) for task in schedule.tasks_for(iteration))
    assert counts == {f"s{source}": 2 for source in range(5)}


def test_sources_are_mixed_within_an_iteration() -> None:
    drawn = TaskSchedule(make_tasks(40, 40), 24, seed=0, balance="data_source").tasks_for(0)
    assert sorted(task.data_source for task in drawn) not in (
        [task.data_source for task in drawn],
        [task.data_source for task in drawn][::-1],
    )


def test_the_order_of_the_file_matters_only_within_a_source() -> None:
    first, second = make_tasks(9), [Task("x", "x?", data_source="a")]
    forward = TaskSchedule(first + second, 4, seed=0, balance="data_source")
    backward = TaskSchedule(second + first, 4, seed=0, balance="data_source")
    assert [forward.tasks_for(i) for i in range(9)] == [backward.tasks_for(i) for i in range(9)]


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [
        ([10], 4, ([4], [0])),
        ([2, 100, 100], 10, ([2, 4, 4], [1, 2])),
        ([1, 2, 100], 30, ([1, 2, 27], [2])),
        ([1, 2], 3, ([1, 2], [])),
        ([1, 2], 4, ([2, 2], [0, 1])),
        ([5, 5, 5], 2, ([0, 0, 0], [0, 1, 2])),
    ],
)
def test_draws_are_divided_as_evenly_as_the_pools_allow(
    sizes: list[int], total: int, expected: tuple[list[int], list[int]]
) -> None:
    assert split_evenly(sizes, total) == expected


def test_a_late_iteration_of_a_large_set_is_found_at_once() -> None:
    schedule = TaskSchedule(make_tasks(5000), 32, seed=0)
    assert len(set(ids(schedule.tasks_for(100_000)))) == 32


def test_only_two_epochs_are_remembered() -> None:
    stream = TaskStream(10, 3, seed=0)
    for iteration in random.Random(0).sample(range(200), 50):
        stream.draw(iteration)
        assert len(stream._memo) <= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": []}, "tasks must not be empty"),
        ({"tasks_per_iteration": 0}, "tasks_per_iteration must be at least 1, got 0"),
        ({"balance": "sources"}, "balance must be 'none' or 'data_source', got 'sources'"),
    ],
)
def test_arguments_are_checked(arguments: dict, message: str) -> None:
    settings = {"tasks": make_tasks(3), "tasks_per_iteration": 2, "seed": 0, **arguments}
    with pytest.raises(ValueError, match=message):
        TaskSchedule(settings.pop("tasks"), settings.pop("tasks_per_iteration"), **settings)
    with pytest.raises(ValueError, match="iteration must be at least 0, got -1"):
        TaskSchedule(make_tasks(3), 2, seed=0).tasks_for(-1)


def test_replacements_come_from_the_source_of_what_they_replace() -> None:
    tasks = make_tasks(4, 6)
    schedule = TaskSchedule(tasks, 4, seed=0, balance="data_source")
    drawn = schedule.tasks_for(0)
    dropped = [task for task in drawn if task.data_source == "s1"]
    found = schedule.replacements(dropped, {task.id for task in drawn}, iteration=0, draw=1)
    assert len(found) == len(dropped) == 2 and {task.data_source for task in found} == {"s1"}
    assert not {task.id for task in found} & {task.id for task in drawn}


def test_replacements_are_a_function_of_seed_iteration_and_draw() -> None:
    tasks = make_tasks(30)
    first = TaskSchedule(tasks, 3, seed=0)
    dropped, played = first.tasks_for(0), {task.id for task in first.tasks_for(0)}

    def replace(schedule: TaskSchedule, iteration: int, draw: int) -> list[str]:
        return ids(schedule.replacements(dropped, played, iteration=iteration, draw=draw))

    again = replace(TaskSchedule(tasks, 3, seed=0), 0, 1)
    assert again == replace(first, 0, 1) and len(again) == 3
    others = [replace(first, 1, 1), replace(first, 0, 2), replace(TaskSchedule(tasks, 3, seed=1), 0, 1)]
    assert all(other != again for other in others)


def test_there_are_fewer_replacements_where_nothing_else_is_left() -> None:
    schedule = TaskSchedule(make_tasks(5), 4, seed=0)
    drawn = schedule.tasks_for(0)
    assert len(schedule.replacements(drawn, {task.id for task in drawn}, iteration=0, draw=1)) == 1


def test_weights_decide_the_share_of_every_source() -> None:
    tasks = [
        Task(f"{source}{number}", "?", data_source=source)
        for source, count in (("easy", 40), ("hard", 5), ("never", 3))
        for number in range(count)
    ]
    schedule = TaskSchedule(tasks, 8, seed=0, weights={"easy": 5, "hard": 3, "never": 0})
    drawn = [schedule.tasks_for(iteration) for iteration in range(100)]
    counts = Counter(task.data_source for batch in drawn for task in batch)
    assert all(len(batch) == 8 for batch in drawn)
    assert counts == {"easy": pytest.approx(500, abs=2), "hard": pytest.approx(300, abs=2)}
    per_iteration = [sum(task.data_source == "hard" for task in batch) for batch in drawn]
    assert set(per_iteration) <= {2, 3, 4}
    # Every epoch of a source holds each of its tasks once, and no iteration plays a task twice while there are others.
    hard = [task.id for batch in drawn for task in batch if task.data_source == "hard"]
    first_epoch = Counter(hard[:5])
    assert max(first_epoch.values()) == 1
    assert all(max(Counter(task.id for task in batch).values()) == 1 for batch in drawn)
    again = TaskSchedule(tasks, 8, seed=0, weights={"never": 0.0, "hard": 0.3, "easy": 0.5})
    assert [task.id for task in again.tasks_for(57)] == [task.id for task in drawn[57]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1.0}, r"weights must name every data source, \['a', 'b'\], got \['a'\]"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, r"weights must name every data source, .* got \['a', 'b', 'c'\]"),
        ({"a": 1.0, "b": -1.0}, r"weights must be finite, not negative and not all 0, got \{'b': -1.0\}"),
        ({"a": 1.0, "b": float("nan")}, "weights must be finite"),
        ({"a": 0.0, "b": 0.0}, "not all 0"),
    ],
)
def test_weights_are_checked(weights: dict[str, float], message: str) -> None:
    tasks = [Task(source, "?", data_source=source) for source in "ab"]
    with pytest.raises(DataError, match=message):
        TaskSchedule(tasks, 2, seed=0, weights=weights)
